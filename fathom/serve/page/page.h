// The web page at "/": chat and live figures in one file, page.html, which the build embeds. It
// loads nothing from elsewhere; its policy names the hashes of its own script and style, so a
// browser runs and applies these and nothing that a model or a client wrote. What it reads from the
// server stands at the top of page.html.
#pragma once

#include <string>
#include <string_view>

#include "fathom/serve/exchange.h"

namespace fathom::serve {

/// The bytes of page.html.
std::string_view page_html();

/// The value of Content-Security-Policy for `html`: nothing may load but its first inline script,
/// its first inline style, images of data: and requests to its own origin; strings never become
/// HTML. Without such a script or style the policy allows none.
std::string security_policy_of(std::string_view html);

/// security_policy_of(page_html()), made once.
const std::string& page_security_policy();

/// GET /: the page for clients that accept text/html, else a hint in plain text. No key is needed:
/// the page holds nothing but itself, and asks for the key when a route answers 401.
HttpReply page_reply(const HttpRequest& request);

}  // namespace fathom::serve
