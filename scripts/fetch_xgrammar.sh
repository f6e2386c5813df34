#!/usr/bin/env bash
# Puts the C++ sources of xgrammar 0.2.8 (Apache-2.0) into build/xgrammar. They come from the source
# package of the Python package index (PIP_INDEX_URL, if another index is used), checked by SHA-256;
# nothing is compiled or installed. Constrained decoding (FATHOM_GRAMMAR) needs them.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
to=build/xgrammar
[ "$(cat "$to/VERSION" 2>/dev/null)" = "$version" ] && { echo "fetch_xgrammar: $to is there"; exit 0; }
command -v python3 >/dev/null || { echo "fetch_xgrammar: python3 is needed" >&2; exit 69; }
mkdir -p build
work=$(mktemp -d build/xgrammar.XXXXXX)
trap 'rm -rf "$work"' EXIT
python3 - "$work" "$version" "$sha256" <<'PY' || exit 69
import hashlib, io, json, os, sys, tarfile, urllib.parse, urllib.request

work, version, sha256 = sys.argv[1:]
name = f"xgrammar-{version}.tar.gz"
index = (os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple").rstrip("/") + "/xgrammar/"
WANTED = ("cpp/", "include/", "3rdparty/dlpack/include/", "3rdparty/dlpack/LICENSE", "3rdparty/picojson/", "LICENSE", "NOTICE")


def get(url, accept):
    request = urllib.request.Request(url, headers={"Accept": accept})
    parts = urllib.parse.urlsplit(url)
    if parts.username:  # of an index that asks for a password
        host = parts.hostname + (f":{parts.port}" if parts.port else "")
        request = urllib.request.Request(parts._replace(netloc=host).geturl(), headers={"Accept": accept})
        passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
        passwords.add_password(None, request.full_url, urllib.parse.unquote(parts.username),
                               urllib.parse.unquote(parts.password or ""), is_authenticated=True)
        opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
        return opener.open(request, timeout=60).read()
    return urllib.request.urlopen(request, timeout=60).read()


try:
    files = json.loads(get(index, "application/vnd.pypi.simple.v1+json"))["files"]
    found = [f["url"] for f in files if f["filename"] == name]
    if not found:
        sys.exit(f"fetch_xgrammar: {name} is not in the package index")
    data = get(urllib.parse.urljoin(index, found[0]), "*/*")
except (OSError, ValueError, KeyError) as error:
    sys.exit(f"fetch_xgrammar: the package index gave no {name}: {error}")
digest = hashlib.sha256(data).hexdigest()
if digest != sha256:
    sys.exit(f"fetch_xgrammar: {name} has the SHA-256 {digest}, expected {sha256}")
with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    for member in archive:
        path = member.name.split("/", 1)[-1]
        if not member.isfile() or ".." in path.split("/") or not path.startswith(WANTED):
            continue
        target = os.path.join(work, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as out:
            out.write(archive.extractfile(member).read())
PY
echo "$version" >"$work/VERSION"
chmod 755 "$work"
rm -rf "$to"
mv "$work" "$to"
echo "fetch_xgrammar: the sources of xgrammar $version are in $to"
