package hooks

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// Default returns the hooks of a template that configures none.
func Default() Hooks {
	return Hooks{
		OnColdStart:    DefaultOnColdStart,
		OnMessage:      DefaultOnMessage,
		OnStreamFinish: DefaultOnStreamFinish,
		OnTerminate:    DefaultOnTerminate,
	}
}

// DefaultOnColdStart calls Pull if data.InitFromS3, and else does nothing.
func DefaultOnColdStart(ctx context.Context, data *HookData) error {
	if !data.InitFromS3 {
		return nil
	}
	return Pull(ctx, data)
}

// DefaultOnMessage saves the message, which counts it in messages_exchanged. Without a
// message it does nothing. Kinds: those of data.Messages; ErrInvalid (data.Messages is
// nil).
func DefaultOnMessage(ctx context.Context, data *HookData) error {
	if data.Message == nil {
		return nil
	}
	if data.Messages == nil {
		return atoll.Errorf("", "", atoll.ErrInvalid, "cannot save the message: set HookData.Messages")
	}
	m := *data.Message
	m.Account = cmp.Or(m.Account, data.Account)
	m.Conversation = cmp.Or(m.Conversation, data.ConversationID)
	return data.Messages.AddMessage(ctx, &m)
}

// DefaultOnStreamFinish calls Push, unless data.NoPush, and adds the tokens to those of
// the conversation. It does both even if one fails. Kinds: those of data.Files and
// data.Messages; ErrInvalid (there are tokens, and data.Messages is nil).
func DefaultOnStreamFinish(ctx context.Context, data *HookData) error {
	var pushed error
	if !data.NoPush {
		pushed = Push(ctx, data)
	}
	return errors.Join(pushed, saveUsage(ctx, data))
}

func saveUsage(ctx context.Context, data *HookData) error {
	u := data.TokenUsage
	if u == nil || *u == (agent.TokenUsage{}) {
		return nil
	}
	if data.Messages == nil {
		return atoll.Errorf("", "", atoll.ErrInvalid, "cannot count tokens: set HookData.Messages")
	}
	return data.Messages.AddUsage(ctx, data.Account, data.ConversationID, *u)
}

// DefaultOnTerminate does nothing.
func DefaultOnTerminate(context.Context, *HookData) error { return nil }

// Pull makes the sandbox's directory equal to its version in object storage, and
// records that in data.SandboxInfo.Meta. Without data.Files it does nothing. A file
// that could not be written is an error, too, since the sandbox would start incomplete.
//
// Kinds: those of data.Files; ErrUnavailable (some files could not be written).
func Pull(ctx context.Context, data *HookData) error {
	if data.Files == nil {
		return nil
	}
	stats, err := data.Files.Pull(ctx)
	if err == nil && stats != nil && stats.Failed > 0 {
		err = atoll.Errorf("pull", "", atoll.ErrUnavailable, "%d files of the version could not be written", stats.Failed)
	}
	data.recordSync(stats, err)
	return err
}

// Push makes a version of the sandbox's directory in object storage, and records that
// in data.SandboxInfo.Meta. Without data.Files it does nothing. It counts unreadable
// files there, and logs them; the version contains all others.
//
// Kinds: those of data.Files.
func Push(ctx context.Context, data *HookData) error {
	if data.Files == nil {
		return nil
	}
	stats, err := data.Files.Push(ctx)
	if err == nil && stats != nil && stats.Failed > 0 {
		data.loggerOrDiscard().Warn("some files were not pushed, since they could not be read", "n", stats.Failed)
	}
	data.recordSync(stats, err)
	return err
}

// recordSync records the result of a sync.
func (d *HookData) recordSync(stats *agent.SyncStats, err error) {
	if d.SandboxInfo == nil {
		return
	}
	meta := &d.SandboxInfo.Meta
	if err != nil {
		meta.SyncError = err.Error()
		return
	}
	meta.LastSync, meta.SyncStats, meta.SyncError = time.Now().Unix(), stats, ""
}

// All returns a hook that runs all hooks in order, even if some fail or panic, and
// returns their joined errors. It skips nil hooks.
func All(hooks ...HookFunc) HookFunc {
	return func(ctx context.Context, data *HookData) error {
		var errs []error
		for _, hook := range hooks {
			if hook != nil {
				errs = append(errs, callHook(ctx, hook, data))
			}
		}
		return errors.Join(errs...)
	}
}

// Then returns a hook that runs hooks in order until one fails, whose error it returns,
// or ctx ends. It skips nil hooks.
func Then(hooks ...HookFunc) HookFunc {
	return func(ctx context.Context, data *HookData) error {
		for _, hook := range hooks {
			if hook == nil {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := hook(ctx, data); err != nil {
				return err
			}
		}
		return nil
	}
}
