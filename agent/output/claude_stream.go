package output

import (
	"encoding/json"
	"strings"
)

// A streamedBlock is a block of content that arrives in pieces. The complete block
// follows in a line of its own, before the line that ends the block; it is not shown
// again.
type streamedBlock struct {
	index     int
	kind      EventType // TextStart, ReasoningStart or ToolInputStart
	id, name  string
	parent    string
	shown     int // bytes of a text
	input     strings.Builder
	closed    bool
	confirmed bool // the complete block has arrived
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
func (c *claude) streamEvent(l *thread, parent string, raw json.RawMessage) {
	var e claudeEvent
	if decodeJSON(raw, &e) != nil {
		return // raw is no object
	}
	switch e.Type {
	case "message_start":
		c.beginMessage(l, cutHead(e.Message.ID, maxID))
		c.countUsage(l, e.Message.Usage)
	case "content_block_start":
		c.beginStreamed(l, parent, &e)
	case "content_block_delta":
		if b := l.openBlock(e.Index); b != nil {
			c.appendDelta(b, &e)
		}
	case "content_block_stop":
		if b := l.openBlock(e.Index); b != nil {
			c.closeBlock(b)
		}
	case "message_delta":
		c.countUsage(l, e.Usage)
		if parent == "" && e.Delta.Stop != "" {
			c.stop = e.Delta.Stop
		}
	}
}

// openBlock returns the open block with the index.
func (l *thread) openBlock(index int) *streamedBlock {
	for _, b := range l.blocks {
		if b.index == index && !b.closed {
			return b
		}
	}
	return nil
}

// beginStreamed opens a block. An unknown block, or one beyond the limit, is shown when
// the complete one arrives.
func (c *claude) beginStreamed(l *thread, parent string, e *claudeEvent) {
	if b := l.openBlock(e.Index); b != nil {
		c.closeBlock(b)
	}
	if len(l.blocks) >= maxBlocks {
		return
	}
	b := &streamedBlock{index: e.Index, parent: parent}
	switch {
	case e.Block.Type == "text":
		b.kind = TextStart
		b.id = c.beginText(TextStart, parent)
		c.showText(b, e.Block.Text)
	case e.Block.Type == "thinking" || e.Block.Type == "redacted_thinking":
		b.kind = ReasoningStart
		b.id = c.beginText(ReasoningStart, parent)
		c.showText(b, e.Block.Thinking)
	case isCall(e.Block.Type):
		b.kind, b.id, b.name = ToolInputStart, c.callID(e.Block.ID), toolName(e.Block.Name)
		if _, twice := c.open[b.id]; twice || c.streamedCall(b.id) != nil {
			return
		}
		c.beginCall(b.id, b.name, parent)
	default:
		return
	}
	l.blocks = append(l.blocks, b)
}

// streamedCall returns the call that is being streamed in any thread; nil if there is
// none.
func (c *claude) streamedCall(id string) *streamedBlock {
	for _, l := range c.threads {
		for _, b := range l.blocks {
			if b.kind == ToolInputStart && b.id == id && !b.closed {
				return b
			}
		}
	}
	return nil
}

// appendDelta adds a piece to a block.
func (c *claude) appendDelta(b *streamedBlock, e *claudeEvent) {
	switch {
	case b.kind == TextStart && e.Delta.Type == "text_delta":
		c.showText(b, e.Delta.Text)
	case b.kind == ReasoningStart && e.Delta.Type == "thinking_delta":
		c.showText(b, e.Delta.Thinking)
	case b.kind == ToolInputStart && e.Delta.Type == "input_json_delta":
		piece := cutHead(e.Delta.JSON, maxMessage-c.streaming)
		c.streaming += len(piece)
		b.input.WriteString(piece)
		c.emitDelta(ToolInputDelta, b.id, b.parent, piece)
	}
}

// showText emits a piece of text, and adds it to the message if messages keep it.
func (c *claude) showText(b *streamedBlock, s string) {
	s = cleanText(s)
	b.shown += len(s)
	if b.kind == ReasoningStart {
		c.emitDelta(ReasoningDelta, b.id, b.parent, s)
		c.separateText(b.parent)
		return
	}
	c.emitDelta(TextDelta, b.id, b.parent, s)
	if b.parent == "" && s != "" {
		c.draft.writePart(textPart, s)
	}
}

// closeBlock ends a block. It emits a call whose input is complete.
func (c *claude) closeBlock(b *streamedBlock) {
	b.closed = true
	switch b.kind {
	case TextStart:
		c.closeRaw()
		c.emitEvent(Event{Type: TextEnd, ID: b.id, ParentToolCallID: b.parent})
	case ReasoningStart:
		c.closeRaw()
		c.emitEvent(Event{Type: ReasoningEnd, ID: b.id, ParentToolCallID: b.parent})
	case ToolInputStart:
		input := c.takeInput(b)
		if input != "" && !json.Valid([]byte(input)) {
			input = quoteJSON(input) // the part that arrived
		}
		c.endCall(b.id, b.name, b.parent, inputOf(json.RawMessage(input)))
	}
}

// takeInput returns the input so far, and frees its share of the limit.
func (c *claude) takeInput(b *streamedBlock) string {
	input := b.input.String()
	b.input.Reset()
	c.streaming -= len(input)
	return input
}

// breakOff ends a block that won't continue. For an incomplete call it ends the input
// without emitting the call; if the complete call still arrives, that is emitted.
func (c *claude) breakOff(b *streamedBlock) {
	if b.kind != ToolInputStart || json.Valid([]byte(b.input.String())) {
		c.closeBlock(b)
		return
	}
	b.closed, b.confirmed = true, true
	c.takeInput(b)
	c.closeRaw()
	c.emitEvent(Event{Type: ToolInputEnd, ID: b.id, ParentToolCallID: b.parent})
}

// closeBlocks breaks off all open blocks of a thread.
func (c *claude) closeBlocks(l *thread) {
	for _, b := range l.blocks {
		if !b.closed {
			c.breakOff(b)
		}
	}
}

// confirmBlock reports whether a complete block has been streamed. If the streamed
// block was incomplete, it emits the rest.
func (c *claude) confirmBlock(l *thread, whole *claudeBlock) bool {
	kind := map[string]EventType{"text": TextStart, "thinking": ReasoningStart, "redacted_thinking": ReasoningStart}[whole.Type]
	if isCall(whole.Type) {
		kind = ToolInputStart
	}
	for _, b := range l.blocks {
		if b.confirmed || b.kind != kind || kind == ToolInputStart && b.id != cutHead(cleanText(whole.ID), maxID) {
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
			c.showText(b, unshownText(b, cleanText(whole.Text+whole.Thinking)))
			c.closeBlock(b)
		}
		return true
	}
	return false
}

// unshownText returns the part of a text that was not streamed.
func unshownText(b *streamedBlock, text string) string {
	if b.shown >= len(text) {
		return ""
	}
	return cleanText(text[b.shown:])
}
