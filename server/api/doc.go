// Package api serves an atoll.Provider over HTTP. The Client of package client is an
// atoll.Provider that calls a [Handler] in another process. A stack of any number of both
// behaves like the provider at its bottom; the conformance suite tests one hop and two.
//
//	h, err := api.NewHandler(provider, api.Options{})
//	l, err := api.Listen(ctx, "unix:///run/user/1000/atoll.sock")
//	go api.Serve(ctx, h, l)
//
//	c, err := client.New(ctx, client.Options{URL: "unix:///run/user/1000/atoll.sock"})
//	sb, err := c.Create(ctx, &atoll.Spec{})
//
// # The wire
//
// Clients and servers of different versions work together, so the names below are frozen;
// TestWireNames asserts them. A server refuses unknown fields, unknown parameters, and a body
// where it expects none. A client ignores unknown fields, and sends only the fields that are
// necessary. [Routes] lists all operations; package openapi generates a document and a page
// from it.
//
//	GET    /health /api/health                no token needed: the server answers
//	GET    /readyz                            no token needed: the server is ready for requests
//	GET    /v1/info  /v1/probe  /metrics
//	POST   /v1/prepare                        Spec; events progress ..., then done or error
//	POST   /v1/sandboxes                      Spec; {"id"}
//	GET    /v1/sandboxes                      ?name= project= label=k=v state=
//	GET    /v1/watch                          events state ..., synced, state ..., error
//	GET    /v1/resolve                        ?id=, or ?name= and project=
//	GET    /v1/sandboxes/{id}                 Status
//	DELETE /v1/sandboxes/{id}                 ?volumes=true
//	POST   /v1/sandboxes/{id}/start  stop {"grace"}  pause  resume  snapshot
//	GET    /v1/sandboxes/{id}/usage
//	GET    /v1/sandboxes/{id}/refusals        what its network refused
//	POST   /v1/sandboxes/{id}/exec            Command, "stdin", "stdin_encoding", "limit"; the result
//	GET    /v1/sandboxes/{id}/exec            a WebSocket, see Streams
//	POST   /v1/sandboxes/{id}/processes       Command; {"id"}
//	GET    /v1/sandboxes/{id}/processes
//	GET    /v1/sandboxes/{id}/processes/{pid}
//	GET    .../{pid}/wait                     Exit
//	POST   .../{pid}/signal {"signal"}  .../{pid}/resize {"rows","cols"}
//	GET    .../{pid}/output                   ?stream= offset= follow=; header Atoll-Offset
//	POST   .../{pid}/stdin                    ?close=true
//	GET    .../{pid}/attach                   a WebSocket, see Streams
//	GET    /v1/sandboxes/{id}/files           ?path= offset=; header Atoll-File-Info
//	PUT    /v1/sandboxes/{id}/files           ?path= mode= no_clobber= sync=
//	DELETE /v1/sandboxes/{id}/files           ?path= recursive=
//	GET    .../files/stat  list  watch        ?path= recursive=
//	POST   .../files/mkdir ?path= mode=       .../files/rename ?from= to=
//	GET    .../files/tar   PUT .../files/tar  ?path=; trailer Atoll-Error
//	GET    /v1/sandboxes/{id}/dial?port=      Upgrade: tcp
//	*      /v1/sandboxes/{id}/ports/{port}/...   {port}~{link} with a link instead of a token
//	GET    /v1/volumes ?project=              DELETE /v1/volumes/{name}?project=
//	GET    /v1/images                         DELETE /v1/images?ref= force=
//	POST   /v1/images/prune                   {"all","unused_for"}; {"images","size"}
//	GET    /v1/workspaces ?project=           DELETE /v1/workspaces/{name}?project=
//	POST   /v1/workspaces                     WorkspaceSpec; events progress ..., then done or error
//	POST   /v1/workspaces/{name}/update       ?project=; the same events
//	GET    /v1/snapshots                      DELETE /v1/snapshots/{id}
//	GET    /v1/projects
//	DELETE /v1/projects/{project}
//	GET    /v1/sessions ?project=             DELETE /v1/sessions/{key}?project=
//	POST   /v1/sessions                       SessionSpec; the session, "opening", "note"
//	POST   /v1/scopes/{kind}/{id}/end         ?project=; {"closed"}
//	GET    /v1/tools                          POST /v1/tools/{name}?workflow= agent_run= session=
//	*      /mcp                               the Model Context Protocol
//
// The body of an unsuccessful response is {"op","id","kind","message","also","request_id"}. A
// client.Client turns it into the *atoll.Error that the server's provider returned. The server uses
// the X-Request-Id of the request, or generates one, and sends it in the response.
//
// # Streams
//
// Each exec or attach has a WebSocket of its own. The first message of the client is the
// request, and the server answers "started" or "attached". Data follows in both directions, and
// the last message is "exit", "end" or "error". Text messages are JSON objects with a "type".
// Binary messages are data: the first byte is the channel (0 stdin, 1 stdout, 2 stderr), and up
// to 64 KiB follow. A sender may send 256 KiB on each channel ahead of the reader; the receiver
// extends the window with the message "window" as its reader consumes the data. So a slow
// reader slows the process, but does not block other streams or fill memory. A client.Client sends
// signals and resizes as ordinary requests, which have responses; on the WebSocket they are for
// browsers.
//
// If the connection breaks, the process continues and the server retains the output that may
// not have arrived for ten seconds. A client that attaches at its offset within that time, at
// any server that reaches the sandbox, gets the complete output. An attachment should have a
// unique "name", by which the server recognizes it when it reconnects; the name of an exec is
// "exec". A client.Client does all this if Options.Patience is set. A server that closes says so
// in its errors: "closing" is "undone" if it did nothing, and "detached" if the operation
// continues. A client that closes the WebSocket properly will not reconnect, and the server
// retains nothing for it.
//
// If a client gives up a Create or an upload, it closes its half of the connection and waits
// for the server to undo the operation. When the call returns, the operation has left nothing
// behind, or the error says that the server did not confirm this in time: 35 seconds for a
// Create, 5 for an upload.
//
// # Tokens
//
// A Handler with tokens expects them as Authorization: Bearer, or on a WebSocket in a
// subprotocol (see [Subprotocol]), because a page cannot set its other headers. It does not
// accept a token in a URL or a cookie: URLs end up in logs and histories, and a browser sends
// cookies on its own, while sandboxes serve pages on the same origin through ports.
//
// A link of [PortLinks] opens one port of one sandbox without a token, for a limited time:
//
//	https://atoll.example.com/v1/sandboxes/{id}/ports/{port}~{link}/...
//	https://{port}-{id}.ports.example.com/?atoll_link={link}
//
// The second form needs LinkOptions.Domain. Its host belongs to the port alone, so a cookie holds
// the link after the first request, and the program sees no prefix. In the first form, pages have an
// opaque origin, for which browsers send no cookie; the link stays in the path.
//
// # Web pages
//
// Options.Origins decides which pages may open WebSockets and use /mcp, and of which the browser
// may show responses to their scripts (CORS). Preflights need no token. Cookies are never part of
// it.
package api
