// Package uistream speaks the UI message stream protocol, version 1, of the AI SDK: chat clients
// such as useChat send messages in it, and read an agent's turn. An [Encoder] translates the
// events of a turn, and [PromptOf] reads the prompt of a client's messages.
//
// Events have only the fields that all clients from AI SDK 5.0.0 on accept: the early ones
// refuse any other.
package uistream

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/output"
)

// Header and Version are the response header that announces a stream in this protocol, and its
// value.
const (
	Header  = "X-Vercel-Ai-Ui-Message-Stream"
	Version = "v1"
)

// Done is the data of the last event of a stream.
const Done = "[DONE]"

// A chunk is one event of the protocol. Its JSON has the fields of its type, and no others.
type chunk struct {
	Type             string                       `json:"type"`
	MessageID        string                       `json:"messageId,omitempty"`
	ID               string                       `json:"id,omitempty"` // of a text
	Delta            string                       `json:"delta,omitempty"`
	ToolCallID       string                       `json:"toolCallId,omitempty"`
	ToolName         string                       `json:"toolName,omitempty"`
	InputTextDelta   string                       `json:"inputTextDelta,omitempty"`
	Input            json.RawMessage              `json:"input,omitempty"`
	Output           json.RawMessage              `json:"output,omitempty"`
	ErrorText        *string                      `json:"errorText,omitempty"`
	ProviderExecuted bool                         `json:"providerExecuted,omitempty"`
	Dynamic          bool                         `json:"dynamic,omitempty"` // the client does not know the tool's types
	ProviderMetadata map[string]map[string]string `json:"providerMetadata,omitempty"`
	MessageMetadata  *metadata                    `json:"messageMetadata,omitempty"`
}

// metadata has the data of a turn that the protocol has no fields for: its ids in the first event,
// and its outcome in the last one.
type metadata struct {
	Conversation string              `json:"conversationId,omitempty"`
	Sandbox      string              `json:"sandboxId,omitempty"`
	Turn         string              `json:"turnId,omitempty"`
	FinishReason output.FinishReason `json:"finishReason,omitempty"`
	Usage        *output.Usage       `json:"usage,omitempty"`
	*output.Metadata
}

// A turnEvent is an event of a turn.
type turnEvent struct {
	output.Event
	Conversation string `json:"conversationId"`
	Sandbox      string `json:"sandboxId"`
	Turn         string `json:"turnId"`
}

// maxCalls limits the number of tool calls without a result that an Encoder remembers. A result of
// any other call is sent as if the call had no input.
const maxCalls = 1024

// An Encoder translates the events of one turn, in their order. The zero value is ready to use.
// The first events of a long turn may be missing: the Encoder makes up for them, since clients fail
// on a text that does not begin.
type Encoder struct {
	started   bool
	inStep    bool
	hasResult bool            // a tool has returned in the current step
	texts     map[string]bool // ids of open texts and thoughts
	inputs    map[string]bool // ids of calls whose input is being streamed
	calls     map[string]bool // ids of calls without a result
	ended     bool            // the turn has finished
	chunks    [][]byte
}

// Encode returns the data of the events that a client gets for ev; none if ev says nothing to it.
// An event that is not JSON is an error: it is a line of a raw turn.
func (e *Encoder) Encode(ev agent.TurnEvent) ([][]byte, error) {
	var t turnEvent
	if err := json.Unmarshal(ev.Data, &t); err != nil {
		return nil, err
	}
	if !e.started {
		turn, _, _ := strings.Cut(ev.ID, ":")
		start := chunk{Type: "start", MessageID: turn}
		if t.Type == output.StreamStart {
			start.MessageMetadata = &metadata{Conversation: t.Conversation, Sandbox: t.Sandbox, Turn: t.Turn}
		}
		e.started, e.texts, e.inputs, e.calls = true, map[string]bool{}, map[string]bool{}, map[string]bool{}
		e.addChunk(start)
	}
	switch t.Type {
	case output.TextStart, output.TextDelta, output.TextEnd, output.ReasoningStart, output.ReasoningDelta, output.ReasoningEnd:
		e.encodeText(&t.Event)
	case output.ToolInputStart, output.ToolInputDelta, output.ToolCall, output.ToolResult, output.ToolError:
		e.encodeTool(&t.Event)
	case output.Error:
		e.addChunk(chunk{Type: "error", ErrorText: &t.Error})
	case output.Finish:
		e.encodeFinish(&t.Event)
	}
	return e.takeChunks(), nil
}

// End returns the data of the last events. err is the reason if the stream ends before the turn.
func (e *Encoder) End(err error) [][]byte {
	if err != nil && !e.ended {
		text := err.Error()
		e.addChunk(chunk{Type: "error", ErrorText: &text})
	}
	return append(e.takeChunks(), []byte(Done))
}

// takeChunks returns the pending chunks.
func (e *Encoder) takeChunks() [][]byte {
	all := e.chunks
	e.chunks = nil
	return all
}

// addChunk encodes a chunk as one line of JSON, without escapes for HTML.
func (e *Encoder) addChunk(c chunk) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil {
		panic(err) // all chunks can be encoded: raw JSON in them is valid
	}
	e.chunks = append(e.chunks, bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}))
}

// beginContent begins a step if none is open. A step is one answer of the model, so content after
// the results of all tools begins another one.
func (e *Encoder) beginContent() {
	if e.inStep && e.hasResult && len(e.texts)+len(e.inputs)+len(e.calls) == 0 {
		e.endStep()
	}
	if !e.inStep {
		e.inStep, e.hasResult = true, false
		e.addChunk(chunk{Type: "start-step"})
	}
}

// endStep ends the open step, if there is one.
func (e *Encoder) endStep() {
	if e.inStep {
		e.inStep = false
		e.addChunk(chunk{Type: "finish-step"})
	}
}

// parentOf returns the metadata of an event of a subagent, nil for any other.
func parentOf(ev *output.Event) map[string]map[string]string {
	if ev.ParentToolCallID == "" {
		return nil
	}
	return map[string]map[string]string{"atoll": {"parentToolCallId": ev.ParentToolCallID}}
}

// encodeText translates an event of a text or a thought.
func (e *Encoder) encodeText(ev *output.Event) {
	kind, moment, _ := strings.Cut(string(ev.Type), "-")
	open := e.texts[ev.ID]
	if !open && moment != "end" {
		e.beginContent()
		e.texts[ev.ID] = true
		e.addChunk(chunk{Type: kind + "-start", ID: ev.ID, ProviderMetadata: parentOf(ev)})
	}
	switch {
	case moment == "delta" && ev.Delta != "":
		e.addChunk(chunk{Type: kind + "-delta", ID: ev.ID, Delta: ev.Delta})
	case moment == "end" && open:
		delete(e.texts, ev.ID)
		e.addChunk(chunk{Type: kind + "-end", ID: ev.ID})
	}
}

// encodeTool translates an event of a tool.
func (e *Encoder) encodeTool(ev *output.Event) {
	switch ev.Type {
	case output.ToolInputStart:
		e.beginContent()
		e.inputs[ev.ID] = true
		e.addChunk(chunk{Type: "tool-input-start", ToolCallID: ev.ID, ToolName: ev.ToolName, ProviderExecuted: true, Dynamic: true})
	case output.ToolInputDelta:
		if e.inputs[ev.ID] && ev.Delta != "" {
			e.addChunk(chunk{Type: "tool-input-delta", ToolCallID: ev.ID, InputTextDelta: ev.Delta})
		}
	case output.ToolCall:
		e.encodeCall(ev)
	default:
		e.encodeResult(ev)
	}
}

// encodeCall translates the complete call of a tool.
func (e *Encoder) encodeCall(ev *output.Event) {
	e.beginContent()
	delete(e.inputs, ev.ToolCallID)
	if len(e.calls) < maxCalls {
		e.calls[ev.ToolCallID] = true
	}
	input := json.RawMessage(ev.Input)
	if !json.Valid(input) {
		input = quoteJSON(ev.Input)
	}
	e.addChunk(chunk{
		Type: "tool-input-available", ToolCallID: ev.ToolCallID, ToolName: ev.ToolName, Input: input, ProviderExecuted: true, Dynamic: true, ProviderMetadata: parentOf(ev),
	})
}

// encodeResult translates the result of a tool.
func (e *Encoder) encodeResult(ev *output.Event) {
	if !e.calls[ev.ToolCallID] {
		call := *ev
		call.Input = "{}"
		e.encodeCall(&call)
	}
	delete(e.calls, ev.ToolCallID)
	e.hasResult = true
	c := chunk{ToolCallID: ev.ToolCallID, ProviderExecuted: true, Dynamic: true}
	if ev.Type == output.ToolError {
		c.Type, c.ErrorText = "tool-output-error", &ev.Error
	} else {
		c.Type, c.Output = "tool-output-available", ev.Result
		if len(ev.Result) == 0 {
			c.Output = json.RawMessage("null")
		}
	}
	e.addChunk(c)
}

// noResult is the error of a tool that still ran when the turn ended.
const noResult = "the turn ended before this tool returned"

// encodeFinish translates the end of the turn. The protocol has an event of its own for a turn that
// was cancelled.
func (e *Encoder) encodeFinish(ev *output.Event) {
	text := noResult
	for _, open := range []map[string]bool{e.inputs, e.calls} {
		for _, id := range slices.Sorted(maps.Keys(open)) { // clients show these tools as running
			e.addChunk(chunk{Type: "tool-output-error", ToolCallID: id, ErrorText: &text, ProviderExecuted: true, Dynamic: true})
		}
	}
	e.endStep()
	e.ended = true
	outcome := &metadata{FinishReason: ev.FinishReason, Usage: ev.Usage, Metadata: ev.Metadata}
	if ev.FinishReason == output.FinishCancelled {
		e.addChunk(chunk{Type: "message-metadata", MessageMetadata: outcome})
		e.addChunk(chunk{Type: "abort"})
		return
	}
	e.addChunk(chunk{Type: "finish", MessageMetadata: outcome})
}

// quoteJSON returns s as JSON.
func quoteJSON(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // every string has a JSON form
	}
	return b
}
