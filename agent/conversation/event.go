package conversation

import (
	"bytes"
	"encoding/json"

	"github.com/seed46cd37a8/atoll/agent/output"
)

// An event is an event that the service itself sends. Those from the agent's output are
// output.Event.
type event struct {
	Type         string        `json:"type"`
	Conversation string        `json:"conversationId,omitempty"`
	Sandbox      string        `json:"sandboxId,omitempty"`
	Turn         string        `json:"turnId,omitempty"`
	Warnings     []string      `json:"warnings,omitzero"`
	Error        string        `json:"error,omitempty"`
	FinishReason string        `json:"finishReason,omitempty"`
	Usage        *output.Usage `json:"usage,omitempty"`
}

// sendStart sends the first event.
func (t *turn) sendStart() {
	t.sendEvent(event{
		Type: "stream-start", Conversation: t.conversation.ID, Sandbox: t.conversation.Turn.Sandbox, Turn: t.id, Warnings: []string{},
	})
}

// sendFailure sends the last events of a turn without an agent. Clients of raw streams get the
// error too: they have no other sign of it.
func (t *turn) sendFailure(text string) {
	t.stream.addEvent(t.ctx, encodeEvent(event{Type: "error", Error: text}))
	t.sendEvent(event{Type: "finish", FinishReason: "error", Usage: &output.Usage{}})
}

// sendEvent sends an event, unless the stream has only the agent's raw lines.
func (t *turn) sendEvent(e event) {
	if !t.raw {
		t.stream.addEvent(t.ctx, encodeEvent(e))
	}
}

// encodeEvent encodes an event as one line of JSON, without escapes for HTML.
func encodeEvent(e any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		panic(err) // all events can be encoded
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'})
}
