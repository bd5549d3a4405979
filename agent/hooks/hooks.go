// Package hooks implements the hooks of agents' sandboxes: code that runs at four
// moments. The moment decides the effect of a hook's error.
//
//	hook             when                                  an error
//	OnColdStart      after a sandbox is made, before use   fails the creation, which leaves nothing behind
//	OnMessage        after a message arrives               is logged
//	OnStreamFinish   after an agent's turn, however it ends is logged
//	OnTerminate      before a sandbox ends                 is reported once the sandbox has ended
//
// A [Runner] runs them. It handles their errors, limits their time and recovers their
// panics.
//
//	h := hooks.Default()
//	h.OnColdStart = hooks.Then(h.OnColdStart, hooks.Command([]string{"npm", "ci"}, hooks.CommandOptions{}))
//	runner := hooks.New(hooks.Options{Log: log})
//	if err := runner.ColdStart(ctx, h, data); err != nil {
//		// remove the sandbox
//	}
package hooks

import (
	"context"
	"log/slog"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// The names of the hooks.
const (
	OnColdStart    = "OnColdStart"
	OnMessage      = "OnMessage"
	OnStreamFinish = "OnStreamFinish"
	OnTerminate    = "OnTerminate"
)

// A HookFunc is the code of a hook. It has to return soon after ctx has ended; a Runner
// abandons one that doesn't. It may be called concurrently for many sandboxes. A nil
// HookFunc does nothing.
type HookFunc func(ctx context.Context, data *HookData) error

// Hooks are the hooks of a template. The zero Hooks do nothing.
type Hooks struct {
	OnColdStart    HookFunc
	OnMessage      HookFunc
	OnStreamFinish HookFunc
	OnTerminate    HookFunc
}

// HookData is the input of a hook. While the hook runs, it owns the data, and
// everything that SandboxInfo, Message and TokenUsage point to. When it returns, the
// caller gets its changes of SandboxInfo, and no other changes.
type HookData struct {
	Hook           string // the hook's name; set by the Runner
	ConversationID string
	Account        string
	Agent          string
	SandboxInfo    *agent.Sandbox    // the sandbox's record
	Sandbox        atoll.Sandbox     // the sandbox
	Message        *agent.Message    // of OnMessage
	TokenUsage     *agent.TokenUsage // of OnStreamFinish; nil if the agent reported none
	Services
}

// Services are used by the default hooks.
type Services struct {
	// Files synchronizes the sandbox's directory with object storage; nil if there is
	// no sync.
	Files Files
	// InitFromS3 makes OnColdStart pull.
	InitFromS3 bool
	// NoPush keeps OnStreamFinish from pushing: changes in the sandbox are not kept.
	NoPush bool
	// Messages stores messages and token counts.
	Messages Messages
	// Log is never nil in a hook that a Runner runs.
	Log *slog.Logger
}

// Files synchronizes a directory in a sandbox with its versions.
type Files interface {
	// Pull makes the directory equal to the version with which the sandbox starts.
	Pull(ctx context.Context) (*agent.SyncStats, error)
	// Push makes a version of the directory.
	Push(ctx context.Context) (*agent.SyncStats, error)
}

// Messages stores the messages of conversations.
type Messages interface {
	// AddMessage adds m to its conversation, and counts it there. It doesn't add a
	// message whose key exists.
	AddMessage(ctx context.Context, m *agent.Message) error
	// AddUsage adds u to the tokens of a conversation.
	AddUsage(ctx context.Context, account, conversation string, u agent.TokenUsage) error
}

// cloneData returns a copy that shares no data with d, only its services.
func (d *HookData) cloneData() *HookData {
	c := *d
	if d.SandboxInfo != nil {
		info := *d.SandboxInfo
		if stats := info.Meta.SyncStats; stats != nil {
			s := *stats
			info.Meta.SyncStats = &s
		}
		c.SandboxInfo = &info
	}
	if d.Message != nil {
		m := *d.Message
		m.ToolCalls = slices.Clone(m.ToolCalls)
		for i, call := range m.ToolCalls {
			m.ToolCalls[i].Input = slices.Clone(call.Input)
		}
		c.Message = &m
	}
	if d.TokenUsage != nil {
		u := *d.TokenUsage
		c.TokenUsage = &u
	}
	return &c
}

// sandboxID returns the sandbox's id, "" if there is none.
func (d *HookData) sandboxID() string {
	switch {
	case d.SandboxInfo != nil:
		return d.SandboxInfo.ID
	case d.Sandbox != nil:
		return d.Sandbox.ID()
	}
	return ""
}

// loggerOrDiscard returns d.Log, or a logger that discards.
func (d *HookData) loggerOrDiscard() *slog.Logger {
	if d.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Log
}
