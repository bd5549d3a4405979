package api

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// Tools are those of agents, which the handler shows as they are.
type Tools interface {
	// Tools lists them.
	Tools() []ToolInfo
	// CallTool calls one, and returns what it gives as JSON.
	CallTool(ctx context.Context, call ToolCall) (json.RawMessage, error)
}

// A ToolInfo describes a tool, to models and to those who allow it.
type ToolInfo struct {
	Name        string          `json:"name"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Input       json.RawMessage `json:"input_schema"`  // JSON Schema
	Output      json.RawMessage `json:"output_schema"` // JSON Schema
	ReadOnly    bool            `json:"read_only"`     // it changes nothing
	Destructive bool            `json:"destructive"`   // it may undo what others have done
	Idempotent  bool            `json:"idempotent"`    // a second call with the same input changes nothing more
}

// A ToolCall is the call of a tool for somebody.
type ToolCall struct {
	Name  string
	Input json.RawMessage // empty means {}
	session.ExecutionContext
	Scope session.Scope // of the session, if it does not follow from the context
}

func toolRoutes() []Route {
	return []Route{
		{
			Method: "GET", Path: "/v1/tools", Name: "listTools", Tag: "tools", Summary: "The tools by which agents use sandboxes",
			Doc: "They are those of `/mcp`, which serves the Model Context Protocol.", Reply: jsonOf[toolsReply](), serve: (*Handler).serveTools,
		},
		{
			Method: "POST", Path: "/v1/tools/{name}", Name: "callTool", Tag: "tools", Summary: "Call a tool",
			Doc: "The body is the tool's input, the answer what it gives; both are described by its schemas. The call uses the sandbox of the workflow, " +
				"else of the agent's run, else of the session that is named.",
			Params: []Param{
				{Name: "workflow", Type: "string", Doc: "id of the workflow run"},
				{Name: "agent_run", Type: "string", Doc: "id of the agent's run"},
				{Name: "session", Type: "string", Doc: "scope of the session, like `conversation/c1`, in place of both"},
			},
			Body: jsonOf[json.RawMessage](), Reply: jsonOf[json.RawMessage](), serve: (*Handler).serveCallTool,
		},
	}
}

type toolsReply struct {
	Tools []ToolInfo `json:"tools"`
}

// errNoTools is what there is where nobody has given the handler tools.
var errNoTools = atoll.Errorf("", "", atoll.ErrUnsupported, "sandbox service is not enabled")

func (h *Handler) serveTools(w http.ResponseWriter, r *http.Request) error {
	if h.opts.Tools == nil {
		return errNoTools
	}
	writeJSON(w, http.StatusOK, toolsReply{h.opts.Tools.Tools()})
	return nil
}

// maxToolInput is how long the input of a tool may be: files are in it.
const maxToolInput = 32 << 20

func (h *Handler) serveCallTool(w http.ResponseWriter, r *http.Request) error {
	if h.opts.Tools == nil {
		return errNoTools
	}
	q := queryOf(r)
	call := ToolCall{Name: r.PathValue("name")}
	call.WorkflowRunID, call.AgentRunID = q.str("workflow"), q.str("agent_run")
	var err error
	if text := q.str("session"); text != "" {
		if call.Scope, err = session.ParseScope(text); err != nil {
			return err
		}
		if call.WorkflowRunID != "" || call.AgentRunID != "" {
			return invalid("parameter session: is in place of workflow and agent_run")
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

// serveMCP hands the request on.
func (h *Handler) serveMCP(w http.ResponseWriter, r *http.Request) error {
	if h.opts.MCP == nil {
		return errNoTools
	}
	ctx := withBaseURL(r)
	if r.Method == http.MethodGet { // which waits for events until one of us goes
		streaming, done, err := h.stream(w, r.WithContext(ctx))
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

// BaseURL is how the client of the request that ctx belongs to has reached this
// server, like "http://host:port"; "" if that was not by TCP.
func BaseURL(ctx context.Context) string {
	base, _ := ctx.Value(baseURLKey{}).(string)
	return base
}

// withBaseURL is the ctx of r, for BaseURL. Who lies in a header lies to himself.
func withBaseURL(r *http.Request) context.Context {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || local.Network() != "tcp" {
		return r.Context()
	}
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return context.WithValue(r.Context(), baseURLKey{}, scheme+"://"+r.Host)
}

// PortPath is where a Handler passes requests on to a port of a sandbox.
func PortPath(sandbox string, port int) string {
	return "/v1/sandboxes/" + segment(sandbox) + "/ports/" + strconv.Itoa(port) + "/"
}
