package output

import (
	"encoding/json"
	"strings"
)

// A streamed is a block of content that comes piece by piece. The whole block follows
// in a line of its own, before the line that says that it ended; it is not shown again.
type streamed struct {
	index     int
	kind      EventType // TextStart, ReasoningStart or ToolInputStart
	id, name  string
	parent    string
	shown     int // bytes of a text
	input     strings.Builder
	closed    bool
	confirmed bool // the whole one has come
}

// A claudeEvent is an event of the model's API.
type claudeEvent struct {
	Type    string `json:"type"`
	Index   int    `json:"index"`
	Message struct {
		ID    string       `json:"id"`
		Usage *claudeUsage `json:"usage"`
	} `json:"message"`
	Block claudeBlock `json:"content_block"`
	Delta struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		Thinking string `json:"thinking"`
		JSON     string `json:"partial_json"`
		Stop     string `json:"stop_reason"`
	} `json:"delta"`
	Usage *claudeUsage `json:"usage"`
}

// streamEvent reads an event of the model's API.
func (c *claude) streamEvent(l *lane, parent string, raw json.RawMessage) {
	var e claudeEvent
	if decode(raw, &e) != nil {
		return // there is none
	}
	switch e.Type {
	case "message_start":
		c.next(l, cut(e.Message.ID, maxID))
		c.countUsage(l, e.Message.Usage)
	case "content_block_start":
		c.beginStreamed(l, parent, &e)
	case "content_block_delta":
		if b := l.piecemeal(e.Index); b != nil {
			c.more(b, &e)
		}
	case "content_block_stop":
		if b := l.piecemeal(e.Index); b != nil {
			c.closeBlock(b)
		}
	case "message_delta":
		c.countUsage(l, e.Usage)
		if parent == "" && e.Delta.Stop != "" {
			c.stop = e.Delta.Stop
		}
	}
}

// piecemeal returns the open block with the index.
func (l *lane) piecemeal(index int) *streamed {
	for _, b := range l.blocks {
		if b.index == index && !b.closed {
			return b
		}
	}
	return nil
}

// beginStreamed opens a block. One that is not known, or one too many, is shown when
// the whole one comes.
func (c *claude) beginStreamed(l *lane, parent string, e *claudeEvent) {
	if b := l.piecemeal(e.Index); b != nil {
		c.closeBlock(b)
	}
	if len(l.blocks) >= maxBlocks {
		return
	}
	b := &streamed{index: e.Index, parent: parent}
	switch {
	case e.Block.Type == "text":
		b.kind = TextStart
		b.id = c.begin(TextStart, parent)
		c.showText(b, e.Block.Text)
	case e.Block.Type == "thinking" || e.Block.Type == "redacted_thinking":
		b.kind = ReasoningStart
		b.id = c.begin(ReasoningStart, parent)
		c.showText(b, e.Block.Thinking)
	case isCall(e.Block.Type):
		b.kind, b.id, b.name = ToolInputStart, c.known(e.Block.ID), toolName(e.Block.Name)
		if _, twice := c.open[b.id]; twice || c.inStream(b.id) != nil {
			return
		}
		c.beginCall(b.id, b.name, parent)
	default:
		return
	}
	l.blocks = append(l.blocks, b)
}

// inStream returns the call that is being streamed, by whomever; nil if it is not.
func (c *claude) inStream(id string) *streamed {
	for _, l := range c.lanes {
		for _, b := range l.blocks {
			if b.kind == ToolInputStart && b.id == id && !b.closed {
				return b
			}
		}
	}
	return nil
}

// more adds a piece to a block.
func (c *claude) more(b *streamed, e *claudeEvent) {
	switch {
	case b.kind == TextStart && e.Delta.Type == "text_delta":
		c.showText(b, e.Delta.Text)
	case b.kind == ReasoningStart && e.Delta.Type == "thinking_delta":
		c.showText(b, e.Delta.Thinking)
	case b.kind == ToolInputStart && e.Delta.Type == "input_json_delta":
		piece := cut(e.Delta.JSON, maxMessage-c.streaming)
		c.streaming += len(piece)
		b.input.WriteString(piece)
		c.delta(ToolInputDelta, b.id, b.parent, piece)
	}
}

// showText shows more of a text, and keeps it if it is one to keep.
func (c *claude) showText(b *streamed, s string) {
	s = scrub(s)
	b.shown += len(s)
	if b.kind == ReasoningStart {
		c.delta(ReasoningDelta, b.id, b.parent, s)
		c.other(b.parent)
		return
	}
	c.delta(TextDelta, b.id, b.parent, s)
	if b.parent == "" && s != "" {
		c.draft.write(textPart, s)
	}
}

// closeBlock ends a block. A call whose input came in full is made.
func (c *claude) closeBlock(b *streamed) {
	b.closed = true
	switch b.kind {
	case TextStart:
		c.closeRaw()
		c.emit(Event{Type: TextEnd, ID: b.id, ParentToolCallID: b.parent})
	case ReasoningStart:
		c.closeRaw()
		c.emit(Event{Type: ReasoningEnd, ID: b.id, ParentToolCallID: b.parent})
	case ToolInputStart:
		input := c.takeInput(b)
		if input != "" && !json.Valid([]byte(input)) {
			input = quote(input) // what there is of it
		}
		c.endCall(b.id, b.name, b.parent, inputOf(json.RawMessage(input)))
	}
}

// takeInput returns what came of an input, and makes room for others.
func (c *claude) takeInput(b *streamed) string {
	input := b.input.String()
	b.input.Reset()
	c.streaming -= len(input)
	return input
}

// breakOff ends a block that does not go on. A call of which only a part has come is
// not made: its input is ended. Should it come as a whole after all, it is.
func (c *claude) breakOff(b *streamed) {
	if b.kind != ToolInputStart || json.Valid([]byte(b.input.String())) {
		c.closeBlock(b)
		return
	}
	b.closed, b.confirmed = true, true
	c.takeInput(b)
	c.closeRaw()
	c.emit(Event{Type: ToolInputEnd, ID: b.id, ParentToolCallID: b.parent})
}

// closeBlocks breaks off all open blocks of a lane.
func (c *claude) closeBlocks(l *lane) {
	for _, b := range l.blocks {
		if !b.closed {
			c.breakOff(b)
		}
	}
}

// confirm reports whether a whole block is one that was streamed. If it was not at its
// end yet, the rest is shown.
func (c *claude) confirm(l *lane, whole *claudeBlock) bool {
	kind := map[string]EventType{"text": TextStart, "thinking": ReasoningStart, "redacted_thinking": ReasoningStart}[whole.Type]
	if isCall(whole.Type) {
		kind = ToolInputStart
	}
	for _, b := range l.blocks {
		if b.confirmed || b.kind != kind || kind == ToolInputStart && b.id != cut(scrub(whole.ID), maxID) {
			continue
		}
		b.confirmed = true
		switch {
		case b.closed:
		case kind == ToolInputStart:
			b.closed = true
			c.takeInput(b)
			c.endCall(b.id, b.name, b.parent, inputOf(whole.Input))
		default:
			c.showText(b, unshown(b, scrub(whole.Text+whole.Thinking)))
			c.closeBlock(b)
		}
		return true
	}
	return false
}

// unshown is what of a text did not come in pieces.
func unshown(b *streamed, text string) string {
	if b.shown >= len(text) {
		return ""
	}
	return scrub(text[b.shown:])
}
