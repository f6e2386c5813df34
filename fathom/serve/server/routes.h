// All routes of the server, in one table: server.cc asks for them, /openapi.json and the docs are
// compared with them.
#pragma once

#include "fathom/serve/server/router.h"

namespace fathom::serve {

class Server;

/// Health, version, models, metrics, server_info, the page and admin routes.
void add_small_routes(Server& server, Router& router);

/// Chat completions, completions, messages, responses, tokenize and render.
void add_model_routes(Server& server, Router& router);

}  // namespace fathom::serve
