package output

import (
	"encoding/json"

	"github.com/seed46cd37a8/atoll/agent"
)

// An Event is one event of a stream, in the format of the AI SDK
// (LanguageModelV2StreamPart). Its JSON has the fields of its type, and no others:
//
//	stream-start      warnings; the caller's to send, no parser gives it
//	text-start        id
//	text-delta        id, delta
//	text-end          id
//	reasoning-start, reasoning-delta, reasoning-end
//	tool-input-start  id, toolName; the id is that of the call
//	tool-input-delta  id, delta
//	tool-input-end    id
//	tool-call         toolCallId, toolName, input
//	tool-result       toolCallId, toolName, result
//	tool-error        toolCallId, toolName, error
//	error             error
//	finish            finishReason, usage, metadata
//
// Events of tools also have providerExecuted, which tells clients to leave the tools to
// the agent. Events of a subagent have the call that started it in parentToolCallId.
type Event struct {
	Type     EventType `json:"type"`
	Warnings []string  `json:"warnings,omitzero"`

	ID    string `json:"id,omitempty"`
	Delta string `json:"delta,omitempty"`

	ToolCallID       string          `json:"toolCallId,omitempty"`
	ToolName         string          `json:"toolName,omitempty"`
	Input            string          `json:"input,omitempty"`  // JSON, as text
	Result           json.RawMessage `json:"result,omitempty"` // a string, or the tool's value
	ProviderExecuted bool            `json:"providerExecuted,omitempty"`
	ParentToolCallID string          `json:"parentToolCallId,omitempty"`

	Error string `json:"error,omitempty"`

	FinishReason FinishReason `json:"finishReason,omitempty"`
	Usage        *Usage       `json:"usage,omitempty"`
	Metadata     *Metadata    `json:"metadata,omitempty"`
}

// An EventType is the type of an event.
type EventType string

// The types.
const (
	StreamStart    EventType = "stream-start"
	TextStart      EventType = "text-start"
	TextDelta      EventType = "text-delta"
	TextEnd        EventType = "text-end"
	ReasoningStart EventType = "reasoning-start"
	ReasoningDelta EventType = "reasoning-delta"
	ReasoningEnd   EventType = "reasoning-end"
	ToolInputStart EventType = "tool-input-start"
	ToolInputDelta EventType = "tool-input-delta"
	ToolInputEnd   EventType = "tool-input-end"
	ToolCall       EventType = "tool-call"
	ToolResult     EventType = "tool-result"
	ToolError      EventType = "tool-error"
	Error          EventType = "error"
	Finish         EventType = "finish"
)

// A FinishReason tells why a run ended.
type FinishReason string

// The reasons.
const (
	FinishStop          FinishReason = "stop"           // the agent finished
	FinishLength        FinishReason = "length"         // a limit of tokens, turns or money
	FinishToolCalls     FinishReason = "tool-calls"     // it waits for a tool that nobody runs
	FinishContentFilter FinishReason = "content-filter" // the model refused
	FinishError         FinishReason = "error"
	FinishCancelled     FinishReason = "cancelled" // not a reason of the AI SDK
	FinishOther         FinishReason = "other"     // it succeeded without a reason
)

// Usage is the number of tokens of a run.
type Usage struct {
	InputTokens       int64 `json:"inputTokens"` // without cached ones
	OutputTokens      int64 `json:"outputTokens"`
	TotalTokens       int64 `json:"totalTokens"`       // sum of all three
	CachedInputTokens int64 `json:"cachedInputTokens"` // read from a cache, or written to it
}

// usageOf returns u in the format of events.
func usageOf(u agent.TokenUsage) *Usage {
	return &Usage{InputTokens: u.Input, OutputTokens: u.Output, TotalTokens: u.Input + u.Output + u.Cache, CachedInputTokens: u.Cache}
}

// Metadata describes a finished run.
type Metadata struct {
	SessionID  string   `json:"sessionId,omitempty"`
	CostUSD    float64  `json:"costUsd"`
	DurationMS int64    `json:"durationMs"`
	Denied     []string `json:"deniedTools,omitempty"`
}
