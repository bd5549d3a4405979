package conversation

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/statesync"
	"github.com/seed46cd37a8/atoll/store"
	"github.com/seed46cd37a8/atoll/template"
)

// CreateSandbox makes a sandbox from the template that is named, for a conversation that
// may be linked with it later. Its hook OnColdStart has run when it returns. Of want
// count ID, Organization, Agent and Template; without an ID one is drawn. Kinds:
// ErrInvalid, ErrAlreadyExists, and those of making a sandbox and of the hook.
func (v *Service) CreateSandbox(ctx context.Context, want atoll.AgentSandbox) (atoll.AgentSandbox, error) {
	id, err := sandboxRef(cmp.Or(want.ID, atoll.NewID()))
	if err != nil {
		return atoll.AgentSandbox{}, err
	}
	if want.Agent != "" && !validRef(want.Agent) {
		return atoll.AgentSandbox{}, atoll.Errorf("create", id, atoll.ErrInvalid, "agent_id %q: use a UUID, or a letter or digit and then up to 64 letters, digits, '-' or '_'", want.Agent)
	}
	c := atoll.Conversation{Account: atoll.AccountFrom(ctx).Name, Organization: want.Organization, Agent: want.Agent, Template: v.templateName(want.Template)}
	tpl, err := v.opts.Templates.Get(c.Template, c.Agent)
	if err != nil {
		return atoll.AgentSandbox{}, err
	}
	unlock, err := v.locks.Lock(ctx, key(c.Account, id))
	if err != nil {
		return atoll.AgentSandbox{}, err
	}
	defer unlock()
	x, err := v.record(ctx, &c, id)
	if err != nil {
		return atoll.AgentSandbox{}, err
	}
	if x.Rev != 0 {
		return atoll.AgentSandbox{}, atoll.Errorf("create", id, atoll.ErrAlreadyExists, "there is a sandbox of this id")
	}
	b, err := v.open(ctx, tpl, &c, x)
	if err != nil {
		return atoll.AgentSandbox{}, err
	}
	if sb, err := b.look(ctx); err != nil || sb != nil {
		return atoll.AgentSandbox{}, cmp.Or(err, atoll.Errorf("create", id, atoll.ErrAlreadyExists, "there is a sandbox of this id or name"))
	}
	if _, err := b.create(ctx); err != nil {
		return atoll.AgentSandbox{}, err
	}
	return v.described(ctx, x), nil
}

// templateName is the one that is meant.
func (v *Service) templateName(name string) string {
	if t, err := v.opts.Templates.Get(name, ""); err == nil {
		return t.Name // and not its alias
	}
	return name
}

// described is what is known of a sandbox, with its state.
func (v *Service) described(ctx context.Context, x *store.AgentSandbox) atoll.AgentSandbox {
	a := x.AgentSandbox
	if !a.Deleted.IsZero() || a.External == "" {
		a.State = atoll.StateRemoved
		return a
	}
	sb, err := v.provider.Get(ctx, a.External)
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	if a.State = st.State; atoll.KindOf(err) == atoll.ErrNotFound {
		a.State = atoll.StateRemoved
	}
	return a
}

// Sandbox returns what is known of a sandbox. Kinds: ErrNotExist.
func (v *Service) Sandbox(ctx context.Context, id string) (atoll.AgentSandbox, error) {
	x, err := v.findSandbox(ctx, id)
	if err != nil {
		return atoll.AgentSandbox{}, err
	}
	return v.described(ctx, x), nil
}

// findSandbox reads the record of a sandbox of the caller's.
func (v *Service) findSandbox(ctx context.Context, id string) (*store.AgentSandbox, error) {
	ref, err := sandboxRef(id)
	if err != nil {
		return nil, err
	}
	return v.store.FindSandbox(ctx, atoll.AccountFrom(ctx).Name, ref)
}

// Sandboxes lists those of the account that are not deleted, sorted by id, from the one
// after the one with the id after. limit 0 means DefaultPage.
func (v *Service) Sandboxes(ctx context.Context, after string, limit int) ([]atoll.AgentSandbox, error) {
	p, err := page(after, limit)
	if err != nil {
		return nil, err
	}
	list, err := v.store.Sandboxes(ctx, atoll.AccountFrom(ctx).Name, p)
	if err != nil {
		return nil, err
	}
	all := make([]atoll.AgentSandbox, len(list))
	for i, x := range list {
		all[i] = v.described(ctx, x)
	}
	return all, nil
}

// on calls do with a sandbox of the caller's while no turn runs in it, and none can
// begin. live says that it has to be there; else b.sandbox may be nil.
func (v *Service) on(ctx context.Context, op, id string, live bool, do func(b *box) error) error {
	x, err := v.findSandbox(ctx, id)
	if err != nil {
		return err
	}
	c := atoll.Conversation{Account: x.Account, Organization: x.Organization, Agent: x.Agent, Template: x.Template}
	if x.Conversation != "" {
		return v.during(ctx, op, x, do, live)
	}
	unlock, err := v.locks.Lock(ctx, key(x.Account, x.ID))
	if err != nil {
		return err
	}
	defer unlock()
	return v.with(ctx, op, &c, x, live, do)
}

// during is on for a sandbox with a conversation, whose turn it takes.
func (v *Service) during(ctx context.Context, op string, x *store.AgentSandbox, do func(b *box) error, live bool) error {
	c, err := v.store.FindConversation(ctx, x.Account, x.Conversation)
	if atoll.KindOf(err) == atoll.ErrNotExist { // its end was cut short
		return v.with(ctx, op, &atoll.Conversation{Account: x.Account, Agent: x.Agent, ID: x.Conversation, Template: x.Template}, x, live, do)
	}
	if err != nil {
		return err
	}
	var failed error
	t, err := v.claim(ctx, c, x.ID, func(t *turn) {
		defer t.settle(nil)
		failed = v.with(context.WithoutCancel(ctx), op, &t.conversation, x, live, do)
		t.v.mu.Lock()
		delete(t.v.turns, key(t.conversation.Account, t.conversation.ID)) // it has no events
		t.v.mu.Unlock()
		t.end()
	})
	if err != nil {
		return err
	}
	select {
	case <-t.done:
		return cmp.Or(failed, t.refused())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// with calls do with a sandbox.
func (v *Service) with(ctx context.Context, op string, c *atoll.Conversation, x *store.AgentSandbox, live bool, do func(b *box) error) error {
	tpl, err := v.opts.Templates.Get(x.Template, x.Agent)
	if err != nil {
		return err
	}
	b, err := v.open(ctx, tpl, c, x)
	if err != nil {
		return err
	}
	if b.sandbox, err = b.look(ctx); err != nil {
		return err
	}
	if b.sandbox == nil && live {
		return atoll.Errorf(op, x.ID, atoll.ErrNotFound, "it is gone: the next prompt makes it again")
	}
	return do(b)
}

// errNoPlace is why nothing can be synced.
func errNoPlace(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "its files are kept nowhere: set sync.store, or the bucket of its template")
}

// SyncSandbox pushes what is in a sandbox. Kinds: ErrNotExist, ErrNotFound (the sandbox
// is gone), ErrConflict (a turn runs), ErrUnsupported (there is no object storage).
func (v *Service) SyncSandbox(ctx context.Context, id string) (out *atoll.SyncStats, err error) {
	err = v.on(ctx, "sync", id, true, func(b *box) error {
		if b.place == nil {
			return errNoPlace("sync", id)
		}
		out, err = b.Push(ctx)
		return err
	})
	return out, err
}

// RestoreSandbox brings a sandbox to what a version held; what is in it was pushed
// before, so that nothing is lost. 0 is the latest version. Kinds: those of
// SyncSandbox; ErrNotExist (no such version).
func (v *Service) RestoreSandbox(ctx context.Context, id string, version int64) (out *atoll.SyncStats, err error) {
	err = v.on(ctx, "restore", id, true, func(b *box) error {
		if b.place == nil {
			return errNoPlace("restore", id)
		}
		if version != 0 {
			if _, err := b.place.Remote.Push(ctx, b.tree(), statesync.PushOptions{}); err != nil {
				return err
			}
		}
		if out, err = b.pull(ctx, version); err != nil {
			return err
		}
		return b.prepare(ctx)
	})
	return out, err
}

// Versions lists the versions of a sandbox's files, the oldest first. Kinds: ErrNotExist,
// ErrUnsupported.
func (v *Service) Versions(ctx context.Context, id string) (all []atoll.SandboxVersion, err error) {
	b, err := v.peek(ctx, "versions", id)
	if err != nil {
		return nil, err
	}
	if b.place == nil {
		return nil, errNoPlace("versions", id)
	}
	for i, err := range b.place.Remote.Versions(ctx) {
		if err != nil {
			return nil, err
		}
		all = append(all, atoll.SandboxVersion{Version: i.Version, Latest: i.Latest, Pushed: i.Pushed})
	}
	return all, nil
}

// peek is with for those who only read, turn or not.
func (v *Service) peek(ctx context.Context, op, id string) (*box, error) {
	x, err := v.findSandbox(ctx, id)
	if err != nil {
		return nil, err
	}
	tpl, err := v.opts.Templates.Get(x.Template, x.Agent)
	if err != nil {
		return nil, err
	}
	return v.open(ctx, tpl, &atoll.Conversation{ID: x.Conversation, Account: x.Account, Agent: x.Agent}, x)
}

// DeleteSandbox pushes what is in a sandbox, if its template's policy is to, runs its hook OnTerminate and removes it,
// with its data volume unless what is in that is nowhere else. What is known of it
// stays, as of one that is deleted, also where something fails: that is returned then.
// The next prompt to its conversation makes it again. Kinds: ErrNotExist, ErrConflict
// (a turn runs), those of the hook and of the removal.
func (v *Service) DeleteSandbox(ctx context.Context, id string) error {
	return v.on(ctx, "delete", id, false, func(b *box) error {
		var failed []error
		if b.sandbox != nil {
			failed = b.terminate(context.WithoutCancel(ctx))
		}
		err := v.changeSandbox(context.WithoutCancel(ctx), b.record.Account, b.record.ID, func(x *store.AgentSandbox) { x.Deleted = time.Now() })
		return errors.Join(append(failed, err)...)
	})
}

// terminate removes the sandbox, whatever fails on the way.
func (b *box) terminate(ctx context.Context) (failed []error) {
	data := b.data()
	safe := b.policy == template.PolicyEphemeral
	if b.pushes() {
		_, err := b.Push(ctx)
		if safe = err == nil; err != nil {
			failed = append(failed, err)
		}
	}
	if err := b.v.opts.Hooks.Terminate(ctx, b.template.Hooks, data); err != nil {
		failed = append(failed, err)
	}
	var opts []atoll.RemoveOption
	if safe && b.policy != template.PolicyPersistent {
		opts = append(opts, atoll.RemoveVolumes())
	}
	if err := b.sandbox.Remove(ctx, opts...); err != nil {
		failed = append(failed, err)
	}
	return slices.Clip(failed)
}
