package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// Conversations manages conversations with agents and their sandboxes. Each call acts for the
// account of its context. Package conversation implements it.
type Conversations interface {
	Send(ctx context.Context, p agent.Prompt) (iter.Seq2[agent.TurnEvent, error], error)
	Follow(ctx context.Context, id, after string) (iter.Seq2[agent.TurnEvent, error], error)
	Cancel(ctx context.Context, id string) error

	Conversation(ctx context.Context, id string) (agent.Conversation, error)
	Conversations(ctx context.Context, after string, limit int) ([]agent.Conversation, error)
	Messages(ctx context.Context, id, before string, limit int) ([]*agent.Message, error)
	DeleteConversation(ctx context.Context, id string, o agent.DeleteOptions) (agent.Deletion, error)

	CreateSandbox(ctx context.Context, want agent.Sandbox) (agent.Sandbox, error)
	Sandbox(ctx context.Context, id string) (agent.Sandbox, error)
	Sandboxes(ctx context.Context, after string, limit int) ([]agent.Sandbox, error)
	SyncSandbox(ctx context.Context, id string) (*agent.SyncStats, error)
	RestoreSandbox(ctx context.Context, id string, version int64) (*agent.SyncStats, error)
	Versions(ctx context.Context, id string) ([]agent.SandboxVersion, error)
	DeleteSandbox(ctx context.Context, id string, o agent.DeleteOptions) (agent.Deletion, error)

	Files(ctx context.Context, id string, q agent.FileQuery) (agent.FilePage, error)
	FileTree(ctx context.Context, id, source, dir string) (*agent.File, error)
	FileContent(ctx context.Context, id, source, name string) (io.ReadCloser, agent.File, error)
}

// apiPrefix precedes the paths of conversations. Clients of the service that this API replaces use
// the paths without it, so the handler serves both.
const apiPrefix = "/v1"

func conversationRoutes() []Route {
	after := Param{Name: "after", Type: "string", Doc: "the last id of the previous page"}
	limit := Param{Name: "limit", Type: "integer", Doc: "the most items to return, up to 1000; default 100"}
	return addBareRoutes([]Route{
		{
			Method: "POST", Path: "/conversation/{conversationId}/sandbox/{sandboxId}", Name: "sendPrompt", Tag: "conversations", Summary: "Send a prompt and stream the agent's turn",
			Doc: "The server creates the conversation and the sandbox if they do not exist; the client chooses their ids. The first event, `stream-start`, has both ids. " +
				"The stream has the events of the AI SDK's language models (`LanguageModelV2StreamPart`); the last one is `finish`. The stream ends when the server has saved the agent's work. " +
				"The turn continues if the client disconnects: `GET .../stream` with `Last-Event-ID` resumes the stream.\n\n" + chatDoc,
			Params: slices.Concat(chatParams(), []Param{streamParam()}),
			Body:   jsonOf[sendBody](), Reply: eventsOf[json.RawMessage](), serve: withConversations((*Handler).serveSend),
		},
		{
			Method: "GET", Path: "/conversation/{conversationId}/sandbox/{sandboxId}/{chatId}/stream", Name: "resumeChat", Tag: "conversations", Summary: "Resume a chat of the AI SDK",
			Doc: "The transports of the AI SDK append `/CHAT/stream` to the URL to which they send messages; the chat has the id of the conversation. " +
				"The response has the same stream as `GET /conversation/{conversationId}/stream?stream=ui`. The parameters have no effect: they are part of the URL.",
			Params: slices.Concat(chatParams(), []Param{streamParam()}), Reply: eventsOf[json.RawMessage](), serve: withConversations((*Handler).serveResumeChat),
		},
		{
			Method: "GET", Path: "/conversation/{conversationId}/stream", Name: "followTurn", Tag: "conversations", Summary: "Stream the current turn, or the one that has just ended",
			Doc: "With the header `Last-Event-ID` the stream begins after that event. The status is 204 if there is no turn, or none of its events comes after that one: an EventSource does not reconnect then. " +
				"With `stream=ui` it always begins with the turn, and the status is 204 if no turn runs.",
			Params: []Param{streamParam()}, Reply: eventsOf[json.RawMessage](), serve: withConversations((*Handler).serveFollow),
		},
		{
			Method: "POST", Path: "/conversation/{conversationId}/cancel", Name: "cancelTurn", Tag: "conversations", Summary: "Cancel the current turn",
			Doc: "The conversation retains the agent's messages up to then. The response follows the end of the turn.", Status: http.StatusNoContent, serve: withConversations((*Handler).serveCancel),
		},
		{
			Method: "GET", Path: "/conversation", Name: "listConversations", Tag: "conversations", Summary: "List the conversations of the account, sorted by id",
			Params: []Param{after, limit}, Reply: jsonOf[conversationsReply](), serve: withConversations((*Handler).serveConversations),
		},
		{
			Method: "GET", Path: "/conversation/{conversationId}", Name: "getConversation", Tag: "conversations", Summary: "Get a conversation",
			Reply: jsonOf[agent.Conversation](), serve: withConversations((*Handler).serveConversation),
		},
		{
			Method: "GET", Path: "/conversation/{conversationId}/messages", Name: "listMessages", Tag: "conversations", Summary: "List the newest messages of a conversation, oldest first",
			Params: []Param{{Name: "before", Type: "string", Doc: "the first key of the previous page"}, limit},
			Reply:  jsonOf[messagesReply](), serve: withConversations((*Handler).serveMessages),
		},
		{
			Method: "DELETE", Path: "/conversation/{conversationId}", Name: "deleteConversation", Tag: "conversations", Summary: "Delete a conversation, its messages and its sandbox",
			Doc: "The server first pushes the files of the sandbox, and then removes it: the response says so. It keeps a sandbox that was not created for an agent. " + deletionDoc,
			Params: []Param{
				{Name: "sandbox", Type: "string", Doc: "`keep` to keep its sandbox, or `remove` to remove it even if it was not created for an agent"},
				{Name: "terminate", Type: "boolean", Doc: "`true` for `sandbox=remove`, `false` for `sandbox=keep`"},
				forceParam(),
			},
			Reply: jsonOf[agent.Deletion](), serve: withConversations((*Handler).serveDeleteConversation),
		},
	}, agentSandboxRoutes(after, limit))
}

// addBareRoutes returns each route twice: with apiPrefix and without it.
func addBareRoutes(lists ...[]Route) (all []Route) {
	for _, list := range lists {
		for _, r := range list {
			bare := r
			bare.Name, bare.Alias = r.Name+"Bare", true
			r.Path = apiPrefix + r.Path
			all = append(all, r, bare)
		}
	}
	return all
}

// A conversationsReply lists conversations.
type conversationsReply struct {
	Conversations []agent.Conversation `json:"conversations"` // newest first
}

// A messagesReply lists messages.
type messagesReply struct {
	Messages []*agent.Message `json:"messages"` // oldest first
}

// A promptBody is the body of a request that sends a prompt. Only Prompt is required.
type promptBody struct {
	Prompt       string       `json:"prompt"`                 // the user's text
	Agent        string       `json:"agent_id,omitempty"`     // the name of the agent
	Organization string       `json:"organization,omitempty"` // the organization of the user
	Provider     providerName `json:"provider,omitempty"`     // the template of the agent, such as claude-code
}

// A providerName is the name of a template, or its number in the service that this API replaces.
type providerName string

// UnmarshalJSON implements json.Unmarshaler.
func (p *providerName) UnmarshalJSON(b []byte) error {
	if n, err := strconv.ParseInt(string(b), 10, 64); err == nil {
		*p = providerName(strconv.FormatInt(n, 10))
		return nil
	}
	return json.Unmarshal(b, (*string)(p))
}

// withConversations adapts a function that needs the handler's conversations to Route.serve.
func withConversations(serve func(*Handler, Conversations, http.ResponseWriter, *http.Request) error) func(*Handler, http.ResponseWriter, *http.Request) error {
	return func(h *Handler, w http.ResponseWriter, r *http.Request) error {
		if h.opts.Conversations == nil {
			return atoll.Errorf("", "", atoll.ErrUnsupported, "this server keeps no conversations")
		}
		return serve(h, h.opts.Conversations, w, r)
	}
}

// serveTurn sends a prompt, and calls send with the events of its turn.
func (h *Handler) serveTurn(c Conversations, w http.ResponseWriter, r *http.Request, p agent.Prompt, send sendEvents) error {
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	events, err := c.Send(ctx, p)
	if err != nil {
		return err
	}
	return send(ctx, w, events)
}

// A sendEvents streams the events of a turn to a client.
type sendEvents func(ctx context.Context, w http.ResponseWriter, events iter.Seq2[agent.TurnEvent, error]) error

// sendTurn streams events as server-sent events.
func sendTurn(ctx context.Context, w http.ResponseWriter, events iter.Seq2[agent.TurnEvent, error]) error {
	return sendTurnUntil(ctx, w, events, "")
}

// sendRawTurn streams the lines of an agent, and a last event that tells clients of the end.
func sendRawTurn(ctx context.Context, w http.ResponseWriter, events iter.Seq2[agent.TurnEvent, error]) error {
	return sendTurnUntil(ctx, w, events, "[DONE]")
}

// sendTurnUntil streams events, and a last one with the data done unless that is "".
func sendTurnUntil(ctx context.Context, w http.ResponseWriter, events iter.Seq2[agent.TurnEvent, error], done string) error {
	w.Header().Set("X-Accel-Buffering", "no") // turns off buffering in nginx
	e := newEventWriter(ctx, w)
	defer e.stopWriter()
	for ev, err := range events {
		if err == nil {
			err = e.sendData(ev.ID, ev.Data)
		} else if !errors.Is(err, context.Canceled) || endReason(ctx) != nil {
			_ = e.sendError(err) // fails if the client has disconnected
		}
		if err != nil {
			return alreadyAnswered(err)
		}
	}
	if done != "" {
		return alreadyAnswered(e.sendData("", []byte(done)))
	}
	return nil
}

// sendData sends an event that has data and no name.
func (e *eventWriter) sendData(id string, data []byte) error {
	buf := make([]byte, 0, len(id)+len(data)+16)
	if id != "" {
		buf = append(buf, "id: "...)
		buf = append(buf, id...)
		buf = append(buf, '\n')
	}
	buf = append(buf, "data: "...)
	buf = append(buf, bytes.ReplaceAll(data, []byte{'\r'}, []byte("\ndata: "))...)
	buf = append(buf, "\n\n"...)
	return e.writeBytes(buf)
}

func (h *Handler) serveFollow(c Conversations, w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	if q.getStream(streamEvents) == streamUI {
		return h.followChat(c, w, r)
	}
	if q.err != nil {
		return q.err
	}
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	events, err := c.Follow(ctx, r.PathValue("conversationId"), r.Header.Get("Last-Event-ID"))
	if err != nil {
		return err
	}
	return sendOrEnd(ctx, w, events, sendTurn)
}

// sendOrEnd calls send, or answers 204 if events is nil: there is nothing to stream.
func sendOrEnd(ctx context.Context, w http.ResponseWriter, events iter.Seq2[agent.TurnEvent, error], send sendEvents) error {
	if events == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return send(ctx, w, events)
}

func (h *Handler) serveCancel(c Conversations, w http.ResponseWriter, r *http.Request) error {
	if err := c.Cancel(r.Context(), r.PathValue("conversationId")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// parseListParams returns the cursor and the limit of a list request.
func parseListParams(r *http.Request, after string) (string, int, error) {
	q := parseQuery(r)
	limit := q.getInt("limit", 0)
	if q.err == nil && q.values.Has("limit") && (limit < 1 || limit > 1000) {
		q.setError(invalidError("parameter limit: must be within 1..1000"))
	}
	return q.getString(after), int(limit), q.err
}

func (h *Handler) serveConversations(c Conversations, w http.ResponseWriter, r *http.Request) error {
	after, limit, err := parseListParams(r, "after")
	if err != nil {
		return err
	}
	all, err := c.Conversations(r.Context(), after, limit)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, conversationsReply{all})
	return nil
}

func (h *Handler) serveConversation(c Conversations, w http.ResponseWriter, r *http.Request) error {
	one, err := c.Conversation(r.Context(), r.PathValue("conversationId"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, one)
	return nil
}

func (h *Handler) serveMessages(c Conversations, w http.ResponseWriter, r *http.Request) error {
	before, limit, err := parseListParams(r, "before")
	if err != nil {
		return err
	}
	all, err := c.Messages(r.Context(), r.PathValue("conversationId"), before, limit)
	if err != nil {
		return err
	}
	if all == nil {
		all = []*agent.Message{}
	}
	writeJSON(w, http.StatusOK, messagesReply{all})
	return nil
}
