// Package testmodel is a fake model API for the programs of agents: Anthropic's Messages and OpenAI's
// Responses, as far as claude and codex use them. The model follows a script, so that a real agent
// runs real commands without a real model.
//
//	model := testmodel.New(testmodel.Reply{Text: "Let me look.", Run: "uname"}, testmodel.Reply{Text: "It is Linux."})
//	server := httptest.NewServer(model)
//	// claude with ANTHROPIC_BASE_URL=server.URL and ANTHROPIC_API_KEY=testmodel.Key
package testmodel

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Key is the only API key that the model accepts.
const Key = "sk-ant-test-0123456789"

// maxBody limits the size of a request; requests of agents are far smaller.
const maxBody = 32 << 20

// A Reply is one answer of the model. If Run or Call is set, the answer ends with a call of a tool.
type Reply struct {
	Think string
	Text  string
	Run   string // a shell command for the agent's own tool
	Call  string // the name of any other tool, for claude
	Input map[string]any
	Error string // if set, the answer is this error
}

// A Model is an http.Handler that follows a script and records requests.
type Model struct {
	mu       sync.Mutex
	replies  []Reply
	requests []string
	ids      int
}

// New returns a model that gives each reply once, in order, to requests that offer tools. It answers
// "ok" to all other requests. When no reply is left, it answers with an error.
func New(replies ...Reply) *Model {
	return &Model{replies: slices.Clone(replies)}
}

// Requests returns the bodies of the requests that got a reply.
func (m *Model) Requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// Left returns the number of remaining replies.
func (m *Model) Left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.replies)
}

// ServeHTTP answers POST /v1/messages, /v1/messages/count_tokens and /v1/responses.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "HEAD /", "GET /":
		return // agents check whether the server exists
	case "POST /v1/messages", "POST /v1/messages/count_tokens", "POST /v1/responses":
	default:
		writeError(w, http.StatusNotFound, "not_found_error", "testmodel: no "+r.Method+" "+r.URL.Path)
		return
	}
	if key := cmp.Or(r.Header.Get("X-Api-Key"), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")); key != Key {
		writeError(w, http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	var req request
	if err := json.Unmarshal(body, &req); err != nil {
		writeError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	if r.URL.Path == "/v1/messages/count_tokens" {
		writeJSON(w, map[string]int{"input_tokens": countTokens(string(body))})
		return
	}
	reply, id, err := m.nextReply(&req, string(body))
	switch {
	case err != nil:
		writeError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
	case reply.Error != "":
		// Agents retry after other statuses, for minutes.
		writeError(w, http.StatusBadRequest, "invalid_request_error", reply.Error)
	case r.URL.Path == "/v1/messages":
		serveMessages(w, &req, reply, id)
	default:
		serveResponses(w, &req, reply, id)
	}
}

// A request has the fields that this package reads of both APIs.
type request struct {
	Model  string `json:"model"`
	Stream bool   `json:"stream"`
	Tools  []struct {
		Name string `json:"name"`
		Type string `json:"type"`
	} `json:"tools"`
}

// OffersTool reports whether the agent offered a tool called name in a request, as Requests returns it.
func OffersTool(body, name string) bool {
	var req request
	return json.Unmarshal([]byte(body), &req) == nil && req.findTool(name) != ""
}

// findTool returns the first of names that the agent offers, or "".
func (r *request) findTool(names ...string) string {
	for _, name := range names {
		for _, t := range r.Tools {
			if t.Name == name {
				return name
			}
		}
	}
	return ""
}

// nextReply returns the reply to a request, and a unique number.
func (m *Model) nextReply(req *request, body string) (Reply, int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids++
	if len(req.Tools) == 0 {
		return Reply{Text: "ok"}, m.ids, nil
	}
	m.requests = append(m.requests, body)
	if len(m.replies) == 0 {
		return Reply{}, 0, fmt.Errorf("testmodel: no reply left for request %d", len(m.requests))
	}
	reply := m.replies[0]
	m.replies = m.replies[1:]
	return reply, m.ids, nil
}

// countTokens returns the number of tokens of a text: one for each 4 bytes.
func countTokens(text string) int { return (len(text) + 3) / 4 }

// splitChunks splits a text into the chunks of a stream.
func splitChunks(text string) []string {
	var all []string
	for text != "" {
		n := min(12, len(text))
		for n < len(text) && text[n]&0xC0 == 0x80 {
			n++ // do not split a character
		}
		all, text = append(all, text[:n]), text[n:]
	}
	return all
}

// writeJSON sends v as JSON.
func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // fails if the agent has gone
}

// writeError sends an error in the form of both APIs.
func writeError(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object{"type": "error", "error": object{"type": kind, "message": message}})
}

type object map[string]any

// A stream sends events in the form of both APIs.
type stream struct {
	w http.ResponseWriter
	n int
}

func newStream(w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "text/event-stream")
	return &stream{w: w}
}

// sendEvent sends one event and flushes it.
func (s *stream) sendEvent(kind string, fields object) {
	fields["type"] = kind
	data, err := json.Marshal(fields)
	if err != nil {
		panic(err) // impossible for strings and numbers
	}
	fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", kind, data)
	_ = http.NewResponseController(s.w).Flush()
}
