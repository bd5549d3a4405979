package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// Conversations keep conversations with agents, and the sandboxes in which these work.
// Each call is for the account of its context. Package conversation has them.
type Conversations interface {
	Send(ctx context.Context, p agent.Prompt) (iter.Seq2[agent.TurnEvent, error], error)
	Follow(ctx context.Context, id, after string) (iter.Seq2[agent.TurnEvent, error], error)
	Cancel(ctx context.Context, id string) error

	Conversation(ctx context.Context, id string) (agent.Conversation, error)
	Conversations(ctx context.Context, after string, limit int) ([]agent.Conversation, error)
	Messages(ctx context.Context, id, before string, limit int) ([]*agent.Message, error)
	DeleteConversation(ctx context.Context, id string, terminate bool) error

	CreateSandbox(ctx context.Context, want agent.Sandbox) (agent.Sandbox, error)
	Sandbox(ctx context.Context, id string) (agent.Sandbox, error)
	Sandboxes(ctx context.Context, after string, limit int) ([]agent.Sandbox, error)
	SyncSandbox(ctx context.Context, id string) (*agent.SyncStats, error)
	RestoreSandbox(ctx context.Context, id string, version int64) (*agent.SyncStats, error)
	Versions(ctx context.Context, id string) ([]agent.SandboxVersion, error)
	DeleteSandbox(ctx context.Context, id string) error

	Files(ctx context.Context, id string, q agent.FileQuery) (agent.FilePage, error)
	FileTree(ctx context.Context, id, source, dir string) (*agent.File, error)
	FileContent(ctx context.Context, id, source, name string) (io.ReadCloser, agent.File, error)
}

// base is below which the paths of conversations are. Clients of the service that they
// come from know them without it, so they answer there as well.
const base = "/v1"

func conversationRoutes() []Route {
	after := Param{Name: "after", Type: "string", Doc: "the id of the last one of the page before"}
	limit := Param{Name: "limit", Type: "integer", Doc: "how many at most, up to 1000; 100 if it is not given"}
	return withoutBase([]Route{
		{
			Method: "POST", Path: "/conversation/{conversationId}/sandbox/{sandboxId}", Name: "send", Tag: "conversations", Summary: "Send a prompt, and follow what the agent does",
			Doc: "A conversation and a sandbox that are not there are made; their ids are the client's to choose. The first event, `stream-start`, has both ids. " +
				"The events are those of the AI SDK; the last one is `finish`, and the stream ends when what the agent did is saved, too. " +
				"The turn goes on when the client leaves: `GET .../stream` with `Last-Event-ID` goes on where it left.",
			Body: jsonOf[promptBody](), Reply: eventsOf[json.RawMessage](), serve: conversing((*Handler).serveSend),
		},
		{
			Method: "GET", Path: "/conversation/{conversationId}/stream", Name: "followTurn", Tag: "conversations", Summary: "Follow the turn that runs, or that has just ended",
			Doc:   "With the header `Last-Event-ID`, from the event after that. Without a turn the answer is 204.",
			Reply: eventsOf[json.RawMessage](), serve: conversing((*Handler).serveFollow),
		},
		{
			Method: "POST", Path: "/conversation/{conversationId}/cancel", Name: "cancelTurn", Tag: "conversations", Summary: "End the turn that runs",
			Doc: "What the agent has said and done is kept. The answer comes when it has ended.", Status: http.StatusNoContent, serve: conversing((*Handler).serveCancel),
		},
		{
			Method: "GET", Path: "/conversation", Name: "listConversations", Tag: "conversations", Summary: "List the conversations of the account, by id",
			Params: []Param{after, limit}, Reply: jsonOf[conversationsReply](), serve: conversing((*Handler).serveConversations),
		},
		{
			Method: "GET", Path: "/conversation/{conversationId}", Name: "getConversation", Tag: "conversations", Summary: "Describe a conversation",
			Reply: jsonOf[agent.Conversation](), serve: conversing((*Handler).serveConversation),
		},
		{
			Method: "GET", Path: "/conversation/{conversationId}/messages", Name: "listMessages", Tag: "conversations", Summary: "The newest messages of a conversation, the oldest of them first",
			Params: []Param{{Name: "before", Type: "string", Doc: "the key of the first one of the page before"}, limit},
			Reply:  jsonOf[messagesReply](), serve: conversing((*Handler).serveMessages),
		},
		{
			Method: "DELETE", Path: "/conversation/{conversationId}", Name: "deleteConversation", Tag: "conversations", Summary: "Forget a conversation and its messages",
			Params: []Param{{Name: "terminate", Type: "boolean", Doc: "delete its sandbox as well"}}, Status: http.StatusNoContent, serve: conversing((*Handler).serveDeleteConversation),
		},
	}, agentSandboxRoutes(after, limit))
}

// withoutBase has all routes answer below base, and without it.
func withoutBase(lists ...[]Route) (all []Route) {
	for _, list := range lists {
		for _, r := range list {
			bare := r
			bare.Name, bare.Summary = r.Name+"Bare", r.Summary+", as below "+base
			r.Path = base + r.Path
			all = append(all, r, bare)
		}
	}
	return all
}

type conversationsReply struct {
	Conversations []agent.Conversation `json:"conversations"`
}

type messagesReply struct {
	Messages []*agent.Message `json:"messages"`
}

// A promptBody is what a client sends. Only Prompt must be there.
type promptBody struct {
	Prompt       string       `json:"prompt"`
	Agent        string       `json:"agent_id,omitempty"`
	Organization string       `json:"organization,omitempty"`
	Provider     providerName `json:"provider,omitempty"`
}

// A providerName is the name of a template, or the number that it had elsewhere.
type providerName string

// UnmarshalJSON implements json.Unmarshaler.
func (p *providerName) UnmarshalJSON(b []byte) error {
	if n, err := strconv.ParseInt(string(b), 10, 64); err == nil {
		*p = providerName(strconv.FormatInt(n, 10))
		return nil
	}
	return json.Unmarshal(b, (*string)(p))
}

// conversing serves with the conversations of the handler.
func conversing(serve func(*Handler, Conversations, http.ResponseWriter, *http.Request) error) func(*Handler, http.ResponseWriter, *http.Request) error {
	return func(h *Handler, w http.ResponseWriter, r *http.Request) error {
		if h.opts.Conversations == nil {
			return atoll.Errorf("", "", atoll.ErrUnsupported, "this server keeps no conversations")
		}
		return serve(h, h.opts.Conversations, w, r)
	}
}

func (h *Handler) serveSend(c Conversations, w http.ResponseWriter, r *http.Request) error {
	var body promptBody
	if err := h.body(w, r, &body, true); err != nil {
		return err
	}
	return h.converse(c, w, r, agent.Prompt{
		Conversation: r.PathValue("conversationId"), Sandbox: r.PathValue("sandboxId"), Agent: body.Agent, Organization: body.Organization, Template: string(body.Provider), Text: body.Prompt,
	})
}

// converse sends a prompt, and answers with the events of its turn.
func (h *Handler) converse(c Conversations, w http.ResponseWriter, r *http.Request, p agent.Prompt) error {
	ctx, done, err := h.stream(w, r)
	if err != nil {
		return err
	}
	defer done()
	events, err := c.Send(ctx, p)
	if err != nil {
		return err
	}
	return sendTurn(ctx, w, events, p.Raw)
}

// sendTurn answers with events.
func sendTurn(ctx context.Context, w http.ResponseWriter, events iter.Seq2[agent.TurnEvent, error], raw bool) error {
	w.Header().Set("X-Accel-Buffering", "no") // of proxies
	e := newEventWriter(ctx, w)
	defer e.close()
	for ev, err := range events {
		if err == nil {
			err = e.data(ev.ID, ev.Data)
		} else if !errors.Is(err, context.Canceled) {
			_ = e.fail(err) // a client that has gone needs none
		}
		if err != nil {
			return answered(err)
		}
	}
	if raw {
		return answered(e.data("", []byte("[DONE]")))
	}
	return nil
}

// data sends an event without a name.
func (e *eventWriter) data(id string, data []byte) error {
	buf := make([]byte, 0, len(id)+len(data)+16)
	if id != "" {
		buf = append(buf, "id: "...)
		buf = append(buf, id...)
		buf = append(buf, '\n')
	}
	buf = append(buf, "data: "...)
	buf = append(buf, bytes.ReplaceAll(data, []byte{'\r'}, []byte("\ndata: "))...)
	buf = append(buf, "\n\n"...)
	return e.write(buf)
}

func (h *Handler) serveFollow(c Conversations, w http.ResponseWriter, r *http.Request) error {
	ctx, done, err := h.stream(w, r)
	if err != nil {
		return err
	}
	defer done()
	events, err := c.Follow(ctx, r.PathValue("conversationId"), r.Header.Get("Last-Event-ID"))
	switch {
	case err != nil:
		return err
	case events == nil:
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return sendTurn(ctx, w, events, false)
}

func (h *Handler) serveCancel(c Conversations, w http.ResponseWriter, r *http.Request) error {
	if err := c.Cancel(r.Context(), r.PathValue("conversationId")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// listed reads the parameters of a list.
func listed(r *http.Request, after string) (string, int, error) {
	q := queryOf(r)
	limit := q.int("limit", 0)
	if q.err == nil && q.values.Has("limit") && (limit < 1 || limit > 1000) {
		q.fail(invalid("parameter limit: must be within 1..1000"))
	}
	return q.str(after), int(limit), q.err
}

func (h *Handler) serveConversations(c Conversations, w http.ResponseWriter, r *http.Request) error {
	after, limit, err := listed(r, "after")
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
	before, limit, err := listed(r, "before")
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

func (h *Handler) serveDeleteConversation(c Conversations, w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	terminate := q.bool("terminate")
	if q.err != nil {
		return q.err
	}
	if err := c.DeleteConversation(r.Context(), r.PathValue("conversationId"), terminate); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
