package uistream

import (
	"encoding/json"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// A Message is a message of a chat client (UIMessage). Only the fields that a prompt needs are
// decoded; the others are ignored, unlike unknown fields elsewhere, since they belong to the client.
type Message struct {
	ID    string `json:"id,omitempty"` // unique within the chat
	Role  string `json:"role"`         // "user", "assistant" or "system"
	Parts []Part `json:"parts"`        // the content
}

// A Part is a part of a Message.
type Part struct {
	Type string `json:"type"`           // "text" for text
	Text string `json:"text,omitempty"` // of a text
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Message) UnmarshalJSON(b []byte) error {
	type plain Message // has no UnmarshalJSON, and accepts unknown fields
	return json.Unmarshal(b, (*plain)(m))
}

// A Trigger is the reason for a client's request.
type Trigger string

// The triggers.
const (
	SubmitMessage     Trigger = "submit-message" // the default
	RegenerateMessage Trigger = "regenerate-message"
)

// A Request is the request of a chat client.
type Request struct {
	Messages  []Message // the client's whole chat, or its end
	Trigger   Trigger
	MessageID string // of the message that the client has replaced, or wants to be replaced; "" if none
}

// Repeats reports whether the request asks to answer a message again: the same one, or one that the
// user has edited.
func (r Request) Repeats() bool { return r.Trigger == RegenerateMessage || r.MessageID != "" }

// PromptOf returns the text of the last message, which must be the user's. Kinds: ErrInvalid;
// ErrUnsupported (the message has a file or other content that is not text).
func PromptOf(r Request) (string, error) {
	if r.Trigger != "" && r.Trigger != SubmitMessage && r.Trigger != RegenerateMessage {
		return "", invalidError("trigger %q: must be %s or %s", r.Trigger, SubmitMessage, RegenerateMessage)
	}
	if len(r.Messages) == 0 {
		return "", invalidError("messages: there are none; send at least the user's last message")
	}
	last := r.Messages[len(r.Messages)-1]
	switch {
	case last.Role != "user":
		return "", invalidError("the last message has the role %q, not user: tools run in the sandbox, so a client has nothing to add to an answer", last.Role)
	case len(last.Parts) == 0:
		return "", invalidError("the last message has no parts: send the messages of AI SDK 5 or later, with parts in place of content")
	}
	texts := make([]string, 0, len(last.Parts))
	for _, p := range last.Parts {
		if p.Type != "text" {
			return "", atoll.Errorf("send", "", atoll.ErrUnsupported, "the last message has a part of type %q: agents take text only; upload files to the sandbox, and name them in the text", p.Type)
		}
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, "\n"), nil
}

func invalidError(format string, args ...any) error {
	return atoll.Errorf("send", "", atoll.ErrInvalid, format, args...)
}
