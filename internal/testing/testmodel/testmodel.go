// Package testmodel is a fake model API for the programs of agents: Anthropic's Messages, OpenAI's Responses and Chat
// Completions, and Gemini's generateContent, as far as claude, codex, opencode, copilot, gemini and aider use them. The model
// follows a script, so that a real agent runs real commands without a real model.
//
//	model := testmodel.New(
//		testmodel.Reply{Text: "Let me write it.", Path: "a.txt", Content: "hello\n"},
//		testmodel.Reply{Run: "git add a.txt && git commit -m Add"},
//		testmodel.Reply{Text: "It is done."},
//	)
//	server := httptest.NewServer(model)
//	// claude with ANTHROPIC_BASE_URL=server.URL and ANTHROPIC_API_KEY=testmodel.Key
//
// A Model is an http.Handler. To play the real host, serve it with TLS at the name of that host.
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

// Key is the only API key that a model of New accepts.
const Key = "sk-ant-test-0123456789"

// maxBody limits the size of a request; requests of agents are far smaller.
const maxBody = 32 << 20

// A Reply is one answer of the model. If Run, Path or Call is set, the answer ends with a call of a tool, whichever the agent
// offers for that.
type Reply struct {
	Think   string
	Text    string
	Run     string // a shell command
	Path    string // a file to write; an agent that works in a sandbox may want an absolute path
	Content string // its content
	Call    string // the name of any other tool
	Input   map[string]any
	Error   string // if set, the answer is this error
}

// A Request is one request to the model.
type Request struct {
	Host   string
	Method string
	Path   string
	Header http.Header
	Body   string
	Status int // of the answer
	// From the conversation in Body:
	Prompts []string // texts of the user, also those that the agent adds itself
	Results []string // results of tools
}

// A Model is an http.Handler that follows a script and records requests.
type Model struct {
	key string

	mu      sync.Mutex
	replies []Reply
	log     []Request
	bodies  []string // of the requests that got a reply
	ids     int
}

// New returns a model that gives each reply once, in order, to requests that offer tools. Agents also have
// other requests, say for a title: it answers "ok", or any JSON of the schema that they ask for. When no reply is left, it answers with an error.
func New(replies ...Reply) *Model { return NewWithKey(Key, replies...) }

// NewWithKey returns a model that accepts another API key.
func NewWithKey(key string, replies ...Reply) *Model {
	return &Model{key: key, replies: slices.Clone(replies)}
}

// Requests returns the bodies of the requests that got a reply.
func (m *Model) Requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.bodies)
}

// Log returns all requests in the order of their answers, also those that the model refused. They share their headers and texts
// with the model.
func (m *Model) Log() []Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.log)
}

// Left returns the number of remaining replies.
func (m *Model) Left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.replies)
}

// ServeHTTP answers the requests of the protocols, and GET / and HEAD /.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	entry := Request{Host: r.Host, Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone()}
	answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	m.answerRequest(answer, r, &entry)
	entry.Status = answer.status
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, entry)
}

// answerRequest answers a request, and completes its entry of the log.
func (m *Model) answerRequest(w http.ResponseWriter, r *http.Request, entry *Request) {
	if r.URL.Path == "/" && (r.Method == http.MethodHead || r.Method == http.MethodGet) {
		return // agents check whether the server exists
	}
	if r.Header.Get("Upgrade") == "websocket" { // then codex uses HTTP
		writeError(w, http.StatusUpgradeRequired, "invalid_request_error", "testmodel: no WebSockets")
		return
	}
	p, method := findProtocol(r)
	if p == nil {
		writeError(w, http.StatusNotFound, "not_found_error", "testmodel: no "+r.Method+" "+r.URL.Path)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	entry.Body = string(body)
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	if keyOf(r) != m.key {
		writeError(w, http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
		return
	}
	req, err := p.parse(body)
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	req.method = method
	entry.Prompts, entry.Results = req.prompts, req.results
	if strings.HasSuffix(strings.ToLower(method), "tokens") {
		writeJSON(w, map[string]int{p.tokens: countTokens(entry.Body)})
		return
	}
	reply, id, err := m.nextReply(req, entry.Body)
	switch {
	case err == nil && reply.Error != "":
		err = fmt.Errorf("%s", reply.Error)
	case err == nil:
		err = p.answer(w, req, reply, id)
	}
	if err != nil { // agents retry after other statuses, for minutes
		writeError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
	}
}

// A protocol is one of the APIs.
type protocol struct {
	// parse parses the body of a request.
	parse func(body []byte) (*request, error)
	// answer sends a reply, or returns why it cannot, without having sent anything.
	answer func(w http.ResponseWriter, req *request, reply Reply, id int) error
	// tokens is the field with the number of tokens, if the API counts them.
	tokens string
}

// findProtocol returns the protocol of a request and the method of the API that it calls; nil if there is none.
func findProtocol(r *http.Request) (p *protocol, method string) {
	if r.Method != http.MethodPost {
		return nil, ""
	}
	switch path := r.URL.Path; {
	case path == "/v1/messages" || path == "/v1/messages/count_tokens":
		return &messages, path
	case path == "/v1/responses" || path == "/responses":
		return &responses, path
	case path == "/v1/chat/completions" || path == "/chat/completions":
		return &completions, path
	case strings.Contains(path, "/models/"):
		_, method, ok := strings.Cut(path, ":")
		if ok && (strings.HasSuffix(method, "enerateContent") || method == "countTokens") {
			return &gemini, method
		}
	}
	return nil, ""
}

// keyOf returns the API key of a request.
func keyOf(r *http.Request) string {
	return cmp.Or(r.Header.Get("X-Api-Key"), r.Header.Get("X-Goog-Api-Key"), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
}

// A request has what all protocols have in common.
type request struct {
	model   string
	method  string
	stream  bool
	tools   []tool
	answer  *schema // of the answer, which is JSON; nil for any text
	prompts []string
	results []string
}

// nextReply returns the reply to a request, and a unique number.
func (m *Model) nextReply(req *request, body string) (Reply, int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids++
	if len(req.tools) == 0 || req.answer != nil {
		return Reply{Text: req.plainAnswer()}, m.ids, nil
	}
	m.bodies = append(m.bodies, body)
	if len(m.replies) == 0 {
		return Reply{}, 0, fmt.Errorf("testmodel: no reply left for request %d", len(m.bodies))
	}
	reply := m.replies[0]
	m.replies = m.replies[1:]
	return reply, m.ids, nil
}

// countTokens returns the number of tokens of a text: one for each 4 bytes.
func countTokens(text string) int { return (len(text) + 3) / 4 }

// outputTokens returns the number of tokens of a reply, which depends only on the reply.
func outputTokens(reply Reply) int {
	return countTokens(reply.Think + reply.Text + reply.Run + reply.Content)
}

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

// writeError sends an error in the form of all protocols.
func writeError(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object{"type": "error", "error": object{"type": kind, "message": message, "code": status}})
}

type object map[string]any

// A statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A stream sends events.
type stream struct {
	w http.ResponseWriter
	n int
}

func newStream(w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "text/event-stream")
	return &stream{w: w}
}

// sendEvent sends one event with its kind, as Anthropic and Responses do.
func (s *stream) sendEvent(kind string, fields object) {
	fields["type"] = kind
	fmt.Fprintf(s.w, "event: %s\n", kind)
	s.sendData(fields)
}

// sendData sends one event without a kind, as Chat Completions and Gemini do, and flushes it.
func (s *stream) sendData(fields object) {
	data, err := json.Marshal(fields)
	if err != nil {
		panic(err) // impossible for strings and numbers
	}
	fmt.Fprintf(s.w, "data: %s\n\n", data)
	_ = http.NewResponseController(s.w).Flush()
}
