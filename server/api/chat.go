package api

import (
	"context"
	"errors"
	"iter"
	"net/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/uistream"
)

// The values of the parameter stream.
const (
	streamEvents = "events" // the events of turns
	streamUI     = "ui"     // the UI message stream protocol of the AI SDK
)

// chatDoc describes the use of a conversation by chat clients.
const chatDoc = "Chat clients of the AI SDK, such as `useChat`, need only the URL: `new DefaultChatTransport({api: \"/v1/conversation/ID/sandbox/NAME?provider=claude-code\"})`, in a chat with the id ID. " +
	"A body with `messages` in place of `prompt` sends the text of the last one, and the answer is a UI message stream (`stream=ui`). " +
	"The agent has its own memory of the conversation, so earlier messages have no effect, and a message that it has answered cannot be edited or answered again. " +
	"The agent runs its own tools (`dynamic-tool`, `providerExecuted`). `messageMetadata` has the ids, the finish reason, the usage and the cost of the turn; " +
	"`providerMetadata.atoll.parentToolCallId` marks the work of a subagent."

// maxChatBody is the largest body of a chat client, in bytes, more than Options.MaxBody: it sends the
// whole chat, with the results of tools, each time.
const maxChatBody = 64 << 20

func streamParam() Param {
	return Param{Name: "stream", Type: "string", Doc: "`events` for the events of turns, or `ui` for the UI message stream protocol of the AI SDK (version 5 or later); default `ui` for a body with `messages`, else `events`"}
}

// chatParams returns the parameters for clients that cannot add fields to the body.
func chatParams() []Param {
	return []Param{
		{Name: "provider", Type: "string", Doc: "as `provider` in the body"},
		{Name: "agent_id", Type: "string", Doc: "as `agent_id` in the body"},
		{Name: "organization", Type: "string", Doc: "as `organization` in the body"},
	}
}

// getStream returns the parameter stream, or fallback if it is missing.
func (q *queryParams) getStream(fallback string) string {
	if !q.values.Has("stream") {
		return fallback
	}
	v := q.getString("stream")
	if v != streamEvents && v != streamUI {
		q.setError(invalidError("parameter stream: %q is not %s or %s", v, streamEvents, streamUI))
	}
	return v
}

// A sendBody is the body of a request that sends a prompt: of a plain client, or of a chat client.
type sendBody struct {
	Prompt       string             `json:"prompt,omitempty"`       // the user's text
	Agent        string             `json:"agent_id,omitempty"`     // the name of the agent
	Organization string             `json:"organization,omitempty"` // the organization of the user
	Provider     providerName       `json:"provider,omitempty"`     // the template of the agent, such as claude-code
	Messages     []uistream.Message `json:"messages,omitempty"`     // in place of the prompt, which is the text of the last one
	ID           string             `json:"id,omitempty"`           // of the chat: that of the conversation
	Trigger      uistream.Trigger   `json:"trigger,omitempty"`      // submit-message
	MessageID    string             `json:"messageId,omitempty"`    // of a message to answer again
}

// isChat reports whether the body is that of a chat client.
func (b *sendBody) isChat() bool { return b.Messages != nil }

func (h *Handler) serveSend(c Conversations, w http.ResponseWriter, r *http.Request) error {
	var body sendBody
	release, err := h.reserveBody(r)
	if err != nil {
		return err
	}
	err = h.decodeBodyUpTo(h.opts.MaxBody+maxChatBody, w, r, &body, true)
	release()
	if err != nil {
		return err
	}
	q := parseQuery(r)
	p := agent.Prompt{
		Conversation: r.PathValue("conversationId"), Sandbox: r.PathValue("sandboxId"), Text: body.Prompt,
		Template:     q.getEither("provider", string(body.Provider)),
		Agent:        q.getEither("agent_id", body.Agent),
		Organization: q.getEither("organization", body.Organization),
	}
	send, fallback := sendTurn, streamEvents
	if body.isChat() {
		fallback = streamUI
	}
	if q.getStream(fallback) == streamUI {
		send = sendChat
	}
	if q.err != nil {
		return q.err
	}
	if body.isChat() {
		if p.Text, err = chatPrompt(r.Context(), c, &body, p.Conversation); err != nil {
			return err
		}
	} else if body.ID != "" || body.Trigger != "" || body.MessageID != "" {
		return invalidError("id, trigger and messageId belong to messages, which are missing")
	}
	return h.serveTurn(c, w, r, p, send)
}

// maxAccountBodies is the number of bodies over Options.MaxBody that an account of projects can send at a time.
const maxAccountBodies = 4

// reserveBody reserves memory for the body of r if it may be large.
func (h *Handler) reserveBody(r *http.Request) (release func(), err error) {
	if r.ContentLength >= 0 && r.ContentLength <= h.opts.MaxBody {
		return func() {}, nil
	}
	return h.shares.reserveShare(r.Context(), "large bodies", maxAccountBodies)
}

// getEither returns a parameter that the body may have instead.
func (q *queryParams) getEither(name, body string) string {
	v := q.getString(name)
	switch {
	case v == "":
		return body
	case body != "" && body != v:
		q.setError(invalidError("%s: the URL has %q, and the body %q: give it once", name, v, body))
	}
	return v
}

// chatPrompt returns the prompt of a chat client.
func chatPrompt(ctx context.Context, c Conversations, body *sendBody, conversation string) (string, error) {
	if body.Prompt != "" {
		return "", invalidError("prompt and messages: send only one of them")
	}
	if body.ID != "" {
		if err := checkChatID(body.ID, conversation); err != nil {
			return "", err
		}
	}
	request := uistream.Request{Messages: body.Messages, Trigger: body.Trigger, MessageID: body.MessageID}
	text, err := uistream.PromptOf(request)
	if err != nil || !request.Repeats() {
		return text, err
	}
	switch _, err := c.Conversation(ctx, conversation); atoll.KindOf(err) {
	case atoll.ErrNotExist: // the first message has failed, and is sent again
		return text, nil
	case "":
		return "", atoll.Errorf("send", conversation, atoll.ErrUnsupported, "a message cannot be answered again or edited: the agent remembers the conversation, and its work is in the sandbox; send a new message")
	default:
		return "", err
	}
}

// checkChatID checks that the id of a chat is that of the conversation: else the messages of several
// chats would go to one agent.
func checkChatID(chat, conversation string) error {
	want, err := agent.ConversationID(conversation)
	if err != nil {
		return err
	}
	if got, err := agent.ConversationID(chat); err != nil || got != want {
		return invalidError("the chat has the id %q, and the URL is that of conversation %q: give the chat the id of its conversation, as in useChat({id: %q})", chat, conversation, conversation)
	}
	return nil
}

func (h *Handler) serveResumeChat(c Conversations, w http.ResponseWriter, r *http.Request) error {
	if err := checkChatID(r.PathValue("chatId"), r.PathValue("conversationId")); err != nil {
		return err
	}
	if q := parseQuery(r); q.getStream(streamUI) != streamUI || q.err != nil {
		return invalidError("parameter stream: must be %s: for events use GET /v1/conversation/ID/stream", streamUI)
	}
	return h.followChat(c, w, r)
}

// followChat streams the running turn to a chat client, from its first event: the client has not
// kept the parts of the answer. It answers 204 if no turn runs, also if there is no conversation yet,
// since chat clients ask before the first message.
func (h *Handler) followChat(c Conversations, w http.ResponseWriter, r *http.Request) error {
	if r.Header.Get("Last-Event-ID") != "" {
		return invalidError("Last-Event-ID: a UI message stream begins with its turn, and its events have no ids")
	}
	ctx, done, err := h.beginStream(w, r)
	if err != nil {
		return err
	}
	defer done()
	now, err := c.Conversation(ctx, r.PathValue("conversationId"))
	switch {
	case atoll.KindOf(err) == atoll.ErrNotExist, err == nil && now.Turn == nil:
		return sendOrEnd(ctx, w, nil, sendChat)
	case err != nil:
		return err
	case now.Turn.Raw:
		return atoll.Errorf("stream", now.ID, atoll.ErrConflict, "the running turn streams the agent's own lines: follow it without stream=%s", streamUI)
	}
	events, err := c.Follow(ctx, now.ID, "")
	if err != nil {
		return err
	}
	return sendOrEnd(ctx, w, events, sendChat)
}

// sendChat streams the events of a turn in the UI message stream protocol.
func sendChat(ctx context.Context, w http.ResponseWriter, events iter.Seq2[agent.TurnEvent, error]) error {
	w.Header().Set("X-Accel-Buffering", "no") // turns off buffering in nginx
	w.Header().Set(uistream.Header, uistream.Version)
	e := newEventWriter(ctx, w)
	defer e.stopWriter()
	var enc uistream.Encoder
	for ev, err := range events {
		var chunks [][]byte
		if err == nil {
			chunks, err = enc.Encode(ev)
		}
		if err != nil {
			return alreadyAnswered(e.endChat(&enc, err))
		}
		if err := e.sendChunks(chunks); err != nil {
			return alreadyAnswered(err)
		}
	}
	return alreadyAnswered(e.sendChunks(enc.End(nil)))
}

// endChat sends err as the last event and returns it. If the server has ended the stream, it sends the
// reason.
func (e *eventWriter) endChat(enc *uistream.Encoder, err error) error {
	if reason := endReason(e.ctx); reason != nil {
		err = reason
	}
	if !errors.Is(err, context.Canceled) {
		_ = e.sendChunks(enc.End(err)) // fails if the client has disconnected
	}
	return err
}

// sendChunks sends an event for each chunk.
func (e *eventWriter) sendChunks(chunks [][]byte) error {
	for _, c := range chunks {
		if err := e.sendData("", c); err != nil {
			return err
		}
	}
	return nil
}
