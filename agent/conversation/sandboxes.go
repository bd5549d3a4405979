package conversation

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// CreateSandbox makes a sandbox from the template that is named, for a conversation that
// may be linked with it later. Its hook OnColdStart has run when it returns. Of want
// count ID, Organization, Agent and Template; without an ID one is drawn. Kinds:
// ErrInvalid, ErrAlreadyExists, and those of making a sandbox and of the hook.
func (v *Service) CreateSandbox(ctx context.Context, want agent.Sandbox) (agent.Sandbox, error) {
	id, err := sandboxRef(cmp.Or(want.ID, atoll.NewID()))
	if err != nil {
		return agent.Sandbox{}, err
	}
	if want.Agent, err = agentRef("create", id, want.Agent); err != nil {
		return agent.Sandbox{}, err
	}
	c := agent.Conversation{Account: auth.AccountFrom(ctx).Name, Organization: want.Organization, Agent: want.Agent, Template: v.templateName(want.Template)}
	tpl, err := v.opts.Templates.Get(c.Template, c.Agent)
	if err != nil {
		return agent.Sandbox{}, err
	}
	unlock, err := v.locks.Lock(ctx, key(c.Account, id))
	if err != nil {
		return agent.Sandbox{}, err
	}
	defer unlock()
	x, err := v.record(ctx, &c, id)
	if err != nil {
		return agent.Sandbox{}, err
	}
	if x.Rev != 0 {
		return agent.Sandbox{}, atoll.Errorf("create", id, atoll.ErrAlreadyExists, "there is a sandbox of this id")
	}
	b, err := v.open(ctx, tpl, &c, x)
	if err != nil {
		return agent.Sandbox{}, err
	}
	if sb, err := b.look(ctx); err != nil || sb != nil {
		return agent.Sandbox{}, cmp.Or(err, atoll.Errorf("create", id, atoll.ErrAlreadyExists, "there is a sandbox of this id or name"))
	}
	if _, err := b.create(ctx); err != nil {
		return agent.Sandbox{}, err
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
func (v *Service) described(ctx context.Context, x *store.AgentSandbox) agent.Sandbox {
	a := x.Sandbox
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
func (v *Service) Sandbox(ctx context.Context, id string) (agent.Sandbox, error) {
	x, err := v.findSandbox(ctx, id)
	if err != nil {
		return agent.Sandbox{}, err
	}
	return v.described(ctx, x), nil
}

// findSandbox reads the record of a sandbox of the caller's.
func (v *Service) findSandbox(ctx context.Context, id string) (*store.AgentSandbox, error) {
	ref, err := sandboxRef(id)
	if err != nil {
		return nil, err
	}
	return v.store.FindSandbox(ctx, auth.AccountFrom(ctx).Name, ref)
}

// Sandboxes lists those of the account that are not deleted, sorted by id, from the one
// after the one with the id after. limit 0 means DefaultPage.
func (v *Service) Sandboxes(ctx context.Context, after string, limit int) ([]agent.Sandbox, error) {
	p, err := page(after, limit)
	if err != nil {
		return nil, err
	}
	list, err := v.store.Sandboxes(ctx, auth.AccountFrom(ctx).Name, p)
	if err != nil {
		return nil, err
	}
	all := make([]agent.Sandbox, len(list))
	for i, x := range list {
		all[i] = v.described(ctx, x)
	}
	return all, nil
}

// on calls do with a sandbox of the caller's while no turn runs in it, and none can
// begin. live says that it has to be there; else b.sandbox may be nil. What has begun is
// done to its end, also when ctx ends: then on does not wait for it.
func (v *Service) on(ctx context.Context, op, id string, live bool, do func(b *box, ctx context.Context) error) error {
	x, c, err := v.linked(ctx, id)
	if err == nil && c == nil {
		unlock, err := v.locks.Lock(ctx, key(x.Account, x.ID))
		if err != nil {
			return err
		}
		defer unlock()
		if x, c, err = v.linked(ctx, id); err != nil { // a prompt may have been before us
			return err
		}
	}
	switch {
	case err != nil:
		return err
	case c == nil:
		c := agent.Conversation{ID: x.Conversation, Account: x.Account, Organization: x.Organization, Agent: x.Agent, Template: x.Template}
		return v.with(context.WithoutCancel(ctx), op, &c, x, live, do)
	}
	return v.alone(ctx, c, x.ID, func(ctx context.Context, t *turn) error {
		x, err := v.store.FindSandbox(ctx, x.Account, x.ID) // as the last turn has left it
		if err != nil {
			return err
		}
		return v.with(ctx, op, &t.conversation, x, live, do)
	})
}

// linked reads the record of a sandbox of the caller's, and its conversation: nil if there
// is none.
func (v *Service) linked(ctx context.Context, id string) (*store.AgentSandbox, *store.Conversation, error) {
	x, err := v.findSandbox(ctx, id)
	if err != nil || x.Conversation == "" {
		return x, nil, err
	}
	c, err := v.store.FindConversation(ctx, x.Account, x.Conversation)
	if atoll.KindOf(err) == atoll.ErrNotExist { // it was deleted with its sandbox
		return x, nil, nil
	}
	return x, c, err
}

// alone calls do as a turn of a conversation, which has no events. When ctx ends it
// does not wait for it, and do goes on.
func (v *Service) alone(ctx context.Context, c *store.Conversation, sandbox string, do func(context.Context, *turn) error) error {
	var failed error
	t, err := v.claim(ctx, c, agent.Turn{Sandbox: sandbox}, func(t *turn) {
		failed = do(context.WithoutCancel(ctx), t)
		v.mu.Lock()
		v.show(key(t.conversation.Account, t.conversation.ID), nil)
		v.mu.Unlock()
		t.settle(nil)
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
func (v *Service) with(ctx context.Context, op string, c *agent.Conversation, x *store.AgentSandbox, live bool, do func(b *box, ctx context.Context) error) error {
	tpl, err := v.opts.Templates.Get(x.Template, x.Agent)
	if err != nil && live {
		return err
	}
	if err != nil { // it can be deleted all the same
		lost := atoll.Errorf(op, x.ID, atoll.KindOf(err), "nothing was pushed, no hook ran and its volume is kept: %w", err)
		tpl = &template.Template{Name: x.Template, Policy: template.PolicyPersistent}
		return errors.Join(lost, v.use(ctx, op, tpl, c, x, live, do))
	}
	return v.use(ctx, op, tpl, c, x, live, do)
}

// use calls do with a sandbox that was made from a template.
func (v *Service) use(ctx context.Context, op string, tpl *template.Template, c *agent.Conversation, x *store.AgentSandbox, live bool, do func(b *box, ctx context.Context) error) error {
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
	return do(b, ctx)
}

// errNoPlace is why nothing can be synced.
func errNoPlace(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "its files are kept nowhere: set sync.store, or the bucket of its template")
}

// SyncSandbox pushes what is in a sandbox. Kinds: ErrNotExist, ErrNotFound (the sandbox
// is gone), ErrConflict (a turn runs), ErrUnsupported (there is no object storage).
func (v *Service) SyncSandbox(ctx context.Context, id string) (*agent.SyncStats, error) {
	var out *agent.SyncStats
	err := v.on(ctx, "sync", id, true, func(b *box, ctx context.Context) (err error) {
		if b.place == nil {
			return errNoPlace("sync", id)
		}
		out, err = b.Push(ctx)
		return err
	})
	if err != nil { // it may go on
		return nil, err
	}
	return out, nil
}

// RestoreSandbox brings a sandbox to what a version held; what is in it was pushed
// before, so that nothing is lost. 0 is the version that was the latest then. It is done
// to its end, also when ctx ends. Kinds: those of SyncSandbox; ErrNotExist (no such
// version).
func (v *Service) RestoreSandbox(ctx context.Context, id string, version int64) (*agent.SyncStats, error) {
	var out *agent.SyncStats
	err := v.on(ctx, "restore", id, true, func(b *box, ctx context.Context) (err error) {
		if b.place == nil {
			return errNoPlace("restore", id)
		}
		if version == 0 {
			if version, err = b.latest(ctx); err != nil {
				return err
			}
		}
		if _, err := b.place.Remote.Push(ctx, b.tree(), filesync.PushOptions{}); err != nil {
			return err
		}
		if out, err = b.pull(ctx, version); err != nil {
			return err
		}
		return b.prepare(ctx)
	})
	if err != nil { // it may go on
		return nil, err
	}
	return out, nil
}

// latest is the number of the latest version.
func (b *box) latest(ctx context.Context) (int64, error) {
	for i, err := range b.place.Remote.Versions(ctx) {
		if err != nil || i.Latest {
			return i.Version, err
		}
	}
	return 0, atoll.Errorf("restore", b.record.ID, atoll.ErrNotExist, "there is no version yet")
}

// Versions lists the versions of a sandbox's files, the oldest first. Kinds: ErrNotExist,
// ErrUnsupported.
func (v *Service) Versions(ctx context.Context, id string) (all []agent.SandboxVersion, err error) {
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
		all = append(all, agent.SandboxVersion{Version: i.Version, Latest: i.Latest, Pushed: i.Pushed})
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
	return v.open(ctx, tpl, &agent.Conversation{ID: x.Conversation, Account: x.Account, Agent: x.Agent}, x)
}

// DeleteSandbox pushes what is in a sandbox, if its template's policy is to, runs its hook
// OnTerminate and removes it, with its data volume unless what is in that is nowhere else.
// What is known of it stays, as of one that is deleted, also where something fails: that
// is returned then, files that could not be pushed and a template that is not there any
// more included. The next prompt to its
// conversation makes it again. Kinds: ErrNotExist, ErrConflict (a turn runs), those of the
// push, of the hook and of the removal.
func (v *Service) DeleteSandbox(ctx context.Context, id string) error {
	return v.on(ctx, "delete", id, false, (*box).end)
}

// end ends the sandbox, and writes that down.
func (b *box) end(ctx context.Context) error {
	var failed []error
	if b.sandbox != nil {
		failed = b.terminate(ctx)
	}
	err := b.v.changeSandbox(ctx, b.record.Account, b.record.ID, func(x *store.AgentSandbox) { x.Deleted = time.Now() })
	return errors.Join(append(failed, err)...)
}

// last is the last push of a sandbox, which is started for that if it has stopped.
func (b *box) last(ctx context.Context) error {
	stats, err := b.Push(ctx) // some have files also when they do not run
	if atoll.KindOf(err) == atoll.ErrStopped {
		if err := b.sandbox.Start(ctx); err != nil {
			return err
		}
		stats, err = b.Push(ctx)
	}
	if err == nil && stats.Failed > 0 {
		err = atoll.Errorf("push", b.record.ID, atoll.ErrUnavailable, "%d files could not be pushed: its volume is kept", stats.Failed)
	}
	return err
}

// terminate removes the sandbox, whatever fails on the way.
func (b *box) terminate(ctx context.Context) (failed []error) {
	data := b.data()
	safe := b.policy == template.PolicyEphemeral
	if b.pushes() {
		err := b.last(ctx)
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
