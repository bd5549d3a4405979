// Package api is a provider over HTTP: a [Handler] serves any atoll.Provider,
// a [Client] is the atoll.Provider that a Handler serves elsewhere. Stacked any
// number of times they behave like what is at the bottom; the conformance suite
// runs over one hop and over two.
//
//	h, err := api.NewHandler(provider, api.Options{})
//	l, err := api.Listen(ctx, "unix:///run/user/1000/atoll.sock")
//	go api.Serve(ctx, h, l)
//
//	c, err := api.NewClient(ctx, api.ClientOptions{URL: "unix:///run/user/1000/atoll.sock"})
//	sb, err := c.Create(ctx, &atoll.Spec{})
//
// # The wire
//
// Old clients meet new servers and the other way round, so the names below are
// frozen; TestWireNames holds them. A server refuses what it does not know,
// fields and parameters included, and a body where none belongs; a client
// ignores it, and sends no more than it must. [Routes] lists every operation;
// package openapi makes a document and a page of it.
//
//	GET    /health /api/health                no token needed: it answers
//	GET    /readyz                            no token needed: requests should be sent here
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
//	POST   /v1/sandboxes/{id}/exec            Command, "stdin", "stdin_encoding", "limit"; the result
//	GET    /v1/sandboxes/{id}/exec            a WebSocket, below
//	POST   /v1/sandboxes/{id}/processes       Command; {"id"}
//	GET    /v1/sandboxes/{id}/processes
//	GET    /v1/sandboxes/{id}/processes/{pid}
//	GET    .../{pid}/wait                     Exit
//	POST   .../{pid}/signal {"signal"}  .../{pid}/resize {"rows","cols"}
//	GET    .../{pid}/output                   ?stream= offset= follow=; header Atoll-Offset
//	POST   .../{pid}/stdin                    ?close=true
//	GET    .../{pid}/attach                   a WebSocket, below
//	GET    /v1/sandboxes/{id}/files           ?path= offset=; header Atoll-File-Info
//	PUT    /v1/sandboxes/{id}/files           ?path= mode= no_clobber= sync=
//	DELETE /v1/sandboxes/{id}/files           ?path= recursive=
//	GET    .../files/stat  list  watch        ?path= recursive=
//	POST   .../files/mkdir ?path= mode=       .../files/rename ?from= to=
//	GET    .../files/tar   PUT .../files/tar  ?path=; trailer Atoll-Error
//	GET    /v1/sandboxes/{id}/dial?port=      Upgrade: tcp
//	*      /v1/sandboxes/{id}/ports/{port}/...
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
// An answer that is not a success is {"op","id","kind","message","also",
// "request_id"}: the Client makes of it the *atoll.Error that the server's
// provider returned. X-Request-Id is taken, or drawn, and answered.
//
// # Streams
//
// An exec or attach is one WebSocket of its own. The client's first message
// says what is wanted, the server answers "started" or "attached", data follows
// both ways, and the last message is "exit", "end" or "error". Text messages
// are JSON objects with a "type"; binary ones are data, their first byte is the
// channel (0 stdin, 1 stdout, 2 stderr), and at most 64 KiB follow. On each
// channel 256 KiB may be on their way; the receiver gives back what its reader
// has taken with "window". So a slow reader slows the process, holds up no
// other stream, and fills no memory. [Client] sends signals and resizes as
// plain requests, which are answered; on the socket they are for browsers.
//
// When the connection breaks, the process lives on, and holds what may not have arrived for
// ten seconds: a client that attaches from there, at any server that reaches the sandbox, misses
// nothing. An attachment should have a "name" of its own, so that the server knows which of
// several has come back; that of an exec is "exec". [Client] does all that with ClientOptions.Patience. A server that closes says so in
// its errors: "closing" is "undone" where nothing was done of what was asked, and "detached"
// where what was begun goes on. A client that closes the WebSocket properly will not come
// again, and nothing is held for it.
//
// When a client gives up a
// Create or an upload it closes its half of the connection and waits for the
// server to undo it, so that nothing is left behind when the call returns, or
// the error says that the server did not say so in time: 35 seconds for a
// Create, 5 for an upload.
//
// # Tokens
//
// Where a Handler has tokens they come as Authorization: Bearer. There is no
// way to put one into an address, a cookie or a WebSocket's subprotocol: those
// end up in logs and histories, or are sent by a browser on its own, and
// sandboxes serve pages of their own on the same origin, through ports.
package api
