// Package hooks has the hooks of sandboxes that agents work in: code that runs at four
// moments. The moment decides what an error of a hook does.
//
//	hook             when                                  an error
//	OnColdStart      after a sandbox is made, before use   fails the creation, which leaves nothing behind
//	OnMessage        after a message arrives               is logged
//	OnStreamFinish   after an agent's turn, however it ends is logged
//	OnTerminate      before a sandbox ends                 is returned once the sandbox has ended
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

// A HookFunc is what a hook does. It has to return soon after ctx has ended; a Runner
// leaves one behind that does not. It may be called at once for many sandboxes. nil
// does nothing.
type HookFunc func(ctx context.Context, data *HookData) error

// Hooks are those of a template. The zero Hooks do nothing.
type Hooks struct {
	OnColdStart    HookFunc
	OnMessage      HookFunc
	OnStreamFinish HookFunc
	OnTerminate    HookFunc
}

// HookData is what a hook is told. It belongs to the hook while that runs, as does all
// that SandboxInfo, Message and TokenUsage point to; what the hook changes in
// SandboxInfo, and nothing else, is its caller's when it has returned.
type HookData struct {
	Hook           string // which one it is; the Runner's to set
	ConversationID string
	Account        string
	Agent          string
	SandboxInfo    *agent.Sandbox    // what is known of the sandbox
	Sandbox        atoll.Sandbox     // the sandbox
	Message        *agent.Message    // of OnMessage
	TokenUsage     *agent.TokenUsage // of OnStreamFinish; nil if the agent did not say
	Services
}

// Services are what the default hooks work with.
type Services struct {
	// Files keeps the synced directory in step with object storage; nil where nothing
	// does.
	Files Files
	// InitFromS3 has OnColdStart pull.
	InitFromS3 bool
	// NoPush has OnStreamFinish not push: what the sandbox does is not kept.
	NoPush bool
	// Messages is where messages and tokens are written down.
	Messages Messages
	// Log is never nil in a hook that a Runner runs.
	Log *slog.Logger
}

// Files is a directory in a sandbox, and where its versions are.
type Files interface {
	// Pull makes the directory hold what the version does that the sandbox is to start
	// with.
	Pull(ctx context.Context) (*agent.SyncStats, error)
	// Push makes a version of what the directory holds.
	Push(ctx context.Context) (*agent.SyncStats, error)
}

// Messages is where those of conversations are kept.
type Messages interface {
	// AddMessage adds m to its conversation, and counts it there. One whose key is there
	// already is not added again.
	AddMessage(ctx context.Context, m *agent.Message) error
	// AddUsage adds u to the tokens of a conversation.
	AddUsage(ctx context.Context, account, conversation string, u agent.TokenUsage) error
}

// clone returns a copy that shares no data with d, only what d works with.
func (d *HookData) clone() *HookData {
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

// sandboxID is the sandbox's, "" if there is none.
func (d *HookData) sandboxID() string {
	switch {
	case d.SandboxInfo != nil:
		return d.SandboxInfo.ID
	case d.Sandbox != nil:
		return d.Sandbox.ID()
	}
	return ""
}

// logger is d.Log, or one that discards.
func (d *HookData) logger() *slog.Logger {
	if d.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Log
}
