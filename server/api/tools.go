package api

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// Tools are tools for agents. The handler serves them under /v1/tools.
type Tools interface {
	// Tools lists the tools.
	Tools() []ToolInfo
	// CallTool calls a tool and returns its result as JSON.
	CallTool(ctx context.Context, call ToolCall) (json.RawMessage, error)
}

// A ToolInfo describes a tool to models and to people who approve its use.
type ToolInfo struct {
	Name        string          `json:"name"`          // with which POST /v1/tools/{name} calls it
	Title       string          `json:"title"`         // for people
	Description string          `json:"description"`   // for models
	Input       json.RawMessage `json:"input_schema"`  // JSON Schema
	Output      json.RawMessage `json:"output_schema"` // JSON Schema
	ReadOnly    bool            `json:"read_only"`     // the tool changes nothing
	Destructive bool            `json:"destructive"`   // the tool may undo the work of others
	Idempotent  bool            `json:"idempotent"`    // a second call with the same input changes nothing more
}

// A ToolCall is one call of a tool, with the context that determines its session.
type ToolCall struct {
	Name  string
	Input json.RawMessage // empty means {}
	session.ExecutionContext
	Scope session.Scope // scope of the session, if the execution context has none
}

func toolRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/tools", Name: "listTools", Tag: "tools", Summary: "List the tools of agents",
			Doc: "The path `/mcp` serves the same tools with the Model Context Protocol.", Reply: jsonOf[toolsReply](), serve: (*Handler).serveTools,
		},
		{
			Method: "POST", Path: "/v1/tools/{name}", Name: "callTool", Tag: "tools", Summary: "Call a tool",
			Doc: "The body is the input of the tool and the response is its output; the schemas of the tool describe both. The call uses the sandbox of the workflow, " +
				"or else of the agent's run, or else of the given session.",
			Params: []Param{
				{Name: "workflow", Type: "string", Doc: "id of the workflow run"},
				{Name: "agent_run", Type: "string", Doc: "id of the agent's run"},
				{Name: "session", Type: "string", Doc: "scope of the session, like `conversation/c1`, instead of workflow and agent_run"},
			},
			Body: jsonOf[json.RawMessage](), Reply: jsonOf[json.RawMessage](), serve: (*Handler).serveCallTool,
		},
	}
}

// A toolsReply lists tools.
type toolsReply struct {
	Tools []ToolInfo `json:"tools"` // in the order in which models get them
}

// errNoTools is the error of a handler without tools.
var errNoTools = atoll.Errorf("", "", atoll.ErrUnsupported, "sandbox service is not enabled")

func (h *Handler) serveTools(w http.ResponseWriter, r *http.Request) error {
	if h.opts.Tools == nil {
		return errNoTools
	}
	writeJSON(w, http.StatusOK, toolsReply{h.opts.Tools.Tools()})
	return nil
}

// maxToolInput is the largest input of a tool, in bytes. It allows for files.
const maxToolInput = 32 << 20

func (h *Handler) serveCallTool(w http.ResponseWriter, r *http.Request) error {
	if h.opts.Tools == nil {
		return errNoTools
	}
	q := parseQuery(r)
	call := ToolCall{Name: r.PathValue("name")}
	call.WorkflowRunID, call.AgentRunID = q.getString("workflow"), q.getString("agent_run")
	var err error
	if text := q.getString("session"); text != "" {
		if call.Scope, err = session.ParseScope(text); err != nil {
			return err
		}
		if call.WorkflowRunID != "" || call.AgentRunID != "" {
			return invalidError("parameter session: excludes workflow and agent_run")
		}
	}
	if call.Input, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxToolInput)); err != nil {
		return uploadError(err)
	}
	out, err := h.opts.Tools.CallTool(withBaseURL(r), call)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// serveMCP passes the request to Options.MCP.
func (h *Handler) serveMCP(w http.ResponseWriter, r *http.Request) error {
	if h.opts.MCP == nil {
		return errNoTools
	}
	ctx := withBaseURL(r)
	if r.Method == http.MethodGet { // streams events until the client disconnects or the handler closes
		streaming, done, err := h.beginStream(w, r.WithContext(ctx))
		if err != nil {
			return err
		}
		defer done()
		ctx = streaming
	}
	h.opts.MCP.ServeHTTP(w, r.WithContext(ctx))
	return nil
}

type baseURLKey struct{}

// BaseURL returns the URL at which the client of the request in ctx reached this server, like
// "http://host:port", or "" if it did not use TCP.
func BaseURL(ctx context.Context) string {
	base, _ := ctx.Value(baseURLKey{}).(string)
	return base
}

// withBaseURL returns the context of r with the URL for BaseURL. It trusts headers of the client,
// because only this client sees the URL.
func withBaseURL(r *http.Request) context.Context {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || local.Network() != "tcp" {
		return r.Context()
	}
	scheme := "http"
	if hasTLS(r) {
		scheme = "https"
	}
	return context.WithValue(r.Context(), baseURLKey{}, scheme+"://"+r.Host)
}

// hasTLS reports whether the client of r uses TLS, as far as the server or a proxy in front of it knows.
func hasTLS(r *http.Request) bool {
	return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
}

// isSecure is hasTLS for a server whose public address may be known.
func (h *Handler) isSecure(r *http.Request) bool {
	return hasTLS(r) || h.opts.Links != nil && strings.HasPrefix(h.opts.Links.opts.PublicURL, "https:")
}

// PortPath returns the path at which a Handler forwards requests to a port of a sandbox.
func PortPath(sandbox string, port int) string {
	return "/v1/sandboxes/" + wire.PathSegment(sandbox) + "/ports/" + strconv.Itoa(port) + "/"
}
