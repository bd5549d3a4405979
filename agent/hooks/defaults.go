package hooks

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// Default is what a template does that says nothing else.
func Default() Hooks {
	return Hooks{
		OnColdStart:    DefaultOnColdStart,
		OnMessage:      DefaultOnMessage,
		OnStreamFinish: DefaultOnStreamFinish,
		OnTerminate:    DefaultOnTerminate,
	}
}

// DefaultOnColdStart does what Pull does if data.InitFromS3, and else nothing.
func DefaultOnColdStart(ctx context.Context, data *HookData) error {
	if !data.InitFromS3 {
		return nil
	}
	return Pull(ctx, data)
}

// DefaultOnMessage saves the message, which counts it in messages_exchanged. Without a
// message there is nothing to do. Kinds: those of data.Messages; ErrInvalid (there is
// none).
func DefaultOnMessage(ctx context.Context, data *HookData) error {
	if data.Message == nil {
		return nil
	}
	if data.Messages == nil {
		return atoll.Errorf("", "", atoll.ErrInvalid, "the message is not saved: give HookData.Messages")
	}
	m := *data.Message
	m.Account = cmp.Or(m.Account, data.Account)
	m.Conversation = cmp.Or(m.Conversation, data.ConversationID)
	return data.Messages.AddMessage(ctx, &m)
}

// DefaultOnStreamFinish does what Push does, unless data.NoPush, and adds the tokens to
// those of the conversation. It tries each, whatever became of the other. Kinds: those
// of data.Files and data.Messages; ErrInvalid (there are tokens, and no Messages).
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
		return atoll.Errorf("", "", atoll.ErrInvalid, "the tokens are not counted: give HookData.Messages")
	}
	return data.Messages.AddUsage(ctx, data.Account, data.ConversationID, *u)
}

// DefaultOnTerminate does nothing.
func DefaultOnTerminate(context.Context, *HookData) error { return nil }

// Pull brings the sandbox's directory to what object storage has of it, and notes that
// in data.SandboxInfo.Meta. Without data.Files it does nothing. A file that could not be
// written is an error too: the sandbox would start with less than was kept of it.
//
// Kinds: those of data.Files; ErrUnavailable (some files could not be written).
func Pull(ctx context.Context, data *HookData) error {
	if data.Files == nil {
		return nil
	}
	stats, err := data.Files.Pull(ctx)
	if err == nil && stats != nil && stats.Failed > 0 {
		err = atoll.Errorf("pull", "", atoll.ErrUnavailable, "%d of the files that were kept could not be written", stats.Failed)
	}
	data.note(stats, err)
	return err
}

// Push makes a version of the sandbox's directory in object storage, and notes that in
// data.SandboxInfo.Meta. Without data.Files it does nothing. Files that could not be read
// are counted there, and logged; all others are in the version.
//
// Kinds: those of data.Files.
func Push(ctx context.Context, data *HookData) error {
	if data.Files == nil {
		return nil
	}
	stats, err := data.Files.Push(ctx)
	if err == nil && stats != nil && stats.Failed > 0 {
		data.logger().Warn("files were not pushed, because they could not be read", "n", stats.Failed)
	}
	data.note(stats, err)
	return err
}

// note writes down how a sync went.
func (d *HookData) note(stats *agent.SyncStats, err error) {
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

// All returns a hook that runs all of hooks, one after the other, whatever becomes of
// them, a panic included, and returns their errors joined. nil ones are left out.
func All(hooks ...HookFunc) HookFunc {
	return func(ctx context.Context, data *HookData) error {
		var errs []error
		for _, hook := range hooks {
			if hook != nil {
				errs = append(errs, guard(ctx, hook, data))
			}
		}
		return errors.Join(errs...)
	}
}

// Then returns a hook that runs hooks one after the other until one fails, whose error
// it returns, or ctx has ended. nil ones are left out.
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
