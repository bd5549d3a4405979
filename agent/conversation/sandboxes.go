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

// CreateSandbox creates a sandbox from a template, without a conversation, which can be linked
// later. It returns after the hook OnColdStart has run. It uses the ID, Organization, Agent and
// Template of want; an empty ID means a random one. Kinds: ErrInvalid, ErrAlreadyExists, and
// those of creating a sandbox and of the hook.
func (s *Service) CreateSandbox(ctx context.Context, want agent.Sandbox) (agent.Sandbox, error) {
	id, err := normalizeSandbox(cmp.Or(want.ID, atoll.NewID()))
	if err != nil {
		return agent.Sandbox{}, err
	}
	if want.Agent, err = normalizeAgent("create", id, want.Agent); err != nil {
		return agent.Sandbox{}, err
	}
	c := agent.Conversation{Account: auth.AccountFrom(ctx).Name, Organization: want.Organization, Agent: want.Agent, Template: s.templateName(want.Template)}
	tpl, err := s.opts.Templates.Get(c.Template, c.Agent)
	if err != nil {
		return agent.Sandbox{}, err
	}
	unlock, err := s.sandboxLocks.Lock(ctx, accountKey(c.Account, id))
	if err != nil {
		return agent.Sandbox{}, err
	}
	defer unlock()
	record, err := s.sandboxRecord(ctx, &c, id)
	if err != nil {
		return agent.Sandbox{}, err
	}
	if record.Rev != 0 {
		return agent.Sandbox{}, atoll.Errorf("create", id, atoll.ErrAlreadyExists, "a sandbox with this id exists")
	}
	sb, err := s.openSandbox(ctx, tpl, &c, record)
	if err != nil {
		return agent.Sandbox{}, err
	}
	if sb, err := sb.findInstance(ctx); err != nil || sb != nil {
		return agent.Sandbox{}, cmp.Or(err, atoll.Errorf("create", id, atoll.ErrAlreadyExists, "a sandbox with this id or name exists"))
	}
	if _, err := sb.createInstance(ctx); err != nil {
		return agent.Sandbox{}, err
	}
	return s.describeSandbox(ctx, record), nil
}

// templateName resolves an alias of a template. It returns other names unchanged.
func (s *Service) templateName(name string) string {
	if t, err := s.opts.Templates.Get(name, ""); err == nil {
		return t.Name // name may be an alias
	}
	return name
}

// describeSandbox returns the public part of a sandbox's record, with its current state.
func (s *Service) describeSandbox(ctx context.Context, record *store.AgentSandbox) agent.Sandbox {
	a := record.Sandbox
	if !a.Deleted.IsZero() || a.External == "" {
		a.State = atoll.StateRemoved
		return a
	}
	sb, err := s.provider.Get(ctx, a.External)
	var st atoll.Status
	if err == nil {
		st, err = sb.Status(ctx)
	}
	if a.State = st.State; atoll.KindOf(err) == atoll.ErrNotFound {
		a.State = atoll.StateRemoved
	}
	return a
}

// Sandbox returns a sandbox of the caller. Kinds: ErrNotExist.
func (s *Service) Sandbox(ctx context.Context, id string) (agent.Sandbox, error) {
	record, err := s.findSandbox(ctx, id)
	if err != nil {
		return agent.Sandbox{}, err
	}
	return s.describeSandbox(ctx, record), nil
}

// findSandbox reads the record of a sandbox of the caller.
func (s *Service) findSandbox(ctx context.Context, id string) (*store.AgentSandbox, error) {
	ref, err := normalizeSandbox(id)
	if err != nil {
		return nil, err
	}
	return s.store.FindSandbox(ctx, auth.AccountFrom(ctx).Name, ref)
}

// Sandboxes lists the sandboxes of the account that are not deleted, sorted by id. The list
// starts after the sandbox with the id after. limit 0 means DefaultPage.
func (s *Service) Sandboxes(ctx context.Context, after string, limit int) ([]agent.Sandbox, error) {
	p, err := newPage(after, limit)
	if err != nil {
		return nil, err
	}
	list, err := s.store.Sandboxes(ctx, auth.AccountFrom(ctx).Name, p)
	if err != nil {
		return nil, err
	}
	all := make([]agent.Sandbox, len(list))
	for i, record := range list {
		all[i] = s.describeSandbox(ctx, record)
	}
	return all, nil
}

// withSandbox calls do with a sandbox of the caller. No turn runs in the sandbox meanwhile, and
// none can begin. If live is set, the instance must exist; else sb.instance may be nil. If ctx
// ends, withSandbox returns, but do continues to its end.
func (s *Service) withSandbox(ctx context.Context, op, id string, live bool, do func(sb *sandbox, ctx context.Context) error) error {
	record, c, err := s.findLinked(ctx, id)
	if err == nil && c == nil {
		unlock, err := s.sandboxLocks.Lock(ctx, accountKey(record.Account, record.ID))
		if err != nil {
			return err
		}
		defer unlock()
		if record, c, err = s.findLinked(ctx, id); err != nil { // a prompt may have linked it meanwhile
			return err
		}
	}
	switch {
	case err != nil:
		return err
	case c == nil:
		c := agent.Conversation{ID: record.Conversation, Account: record.Account, Organization: record.Organization, Agent: record.Agent, Template: record.Template}
		return s.withTemplate(context.WithoutCancel(ctx), op, &c, record, live, do)
	}
	return s.withConversation(ctx, c, record.ID, func(ctx context.Context, t *turn) error {
		record, err := s.store.FindSandbox(ctx, record.Account, record.ID) // the last turn may have changed it
		if err != nil {
			return err
		}
		return s.withTemplate(ctx, op, &t.conversation, record, live, do)
	})
}

// findLinked reads the record of a sandbox of the caller, and of its conversation, nil if there
// is none.
func (s *Service) findLinked(ctx context.Context, id string) (*store.AgentSandbox, *store.Conversation, error) {
	record, err := s.findSandbox(ctx, id)
	if err != nil || record.Conversation == "" {
		return record, nil, err
	}
	c, err := s.store.FindConversation(ctx, record.Account, record.Conversation)
	if atoll.KindOf(err) == atoll.ErrNotExist { // the conversation was deleted with its sandbox
		return record, nil, nil
	}
	return record, c, err
}

// withConversation calls do in a turn without events, so that no other turn can begin. If ctx
// ends, withConversation returns, but do continues to its end.
func (s *Service) withConversation(ctx context.Context, c *store.Conversation, sandboxID string, do func(context.Context, *turn) error) error {
	var failed error
	t, err := s.claimTurn(ctx, c, agent.Turn{Sandbox: sandboxID}, func(t *turn) {
		failed = do(context.WithoutCancel(ctx), t)
		s.mu.Lock()
		s.setShownTurn(accountKey(t.conversation.Account, t.conversation.ID), nil)
		s.mu.Unlock()
		t.settleStart(nil)
		t.endTurn()
	})
	if err != nil {
		return err
	}
	select {
	case <-t.done:
		return cmp.Or(failed, t.startError())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withTemplate calls do with a sandbox, even if its template no longer exists.
func (s *Service) withTemplate(ctx context.Context, op string, c *agent.Conversation, record *store.AgentSandbox, live bool, do func(sb *sandbox, ctx context.Context) error) error {
	tpl, err := s.opts.Templates.Get(record.Template, record.Agent)
	if err != nil && live {
		return err
	}
	if err != nil { // it can still be deleted
		lost := atoll.Errorf(op, record.ID, atoll.KindOf(err), "nothing was pushed, no hook ran and its volume is kept: %w", err)
		tpl = &template.Template{Name: record.Template, Policy: template.PolicyPersistent}
		return errors.Join(lost, s.withInstance(ctx, op, tpl, c, record, live, do))
	}
	return s.withInstance(ctx, op, tpl, c, record, live, do)
}

// withInstance calls do with a sandbox and its instance.
func (s *Service) withInstance(ctx context.Context, op string, tpl *template.Template, c *agent.Conversation, record *store.AgentSandbox, live bool, do func(sb *sandbox, ctx context.Context) error) error {
	sb, err := s.openSandbox(ctx, tpl, c, record)
	if err != nil {
		return err
	}
	if sb.instance, err = sb.findInstance(ctx); err != nil {
		return err
	}
	if sb.instance == nil && live {
		return atoll.Errorf(op, record.ID, atoll.ErrNotFound, "the sandbox is gone: the next prompt creates it again")
	}
	return do(sb, ctx)
}

// errNoPlace returns the error of a sandbox without object storage.
func errNoPlace(op, id string) error {
	return atoll.Errorf(op, id, atoll.ErrUnsupported, "no object storage for its files: set sync.store, or the bucket of its template")
}

// SyncSandbox pushes the files of a sandbox. Kinds: ErrNotExist, ErrNotFound (the sandbox is
// gone), ErrConflict (a turn runs), ErrUnsupported (there is no object storage).
func (s *Service) SyncSandbox(ctx context.Context, id string) (*agent.SyncStats, error) {
	var out *agent.SyncStats
	err := s.withSandbox(ctx, "sync", id, true, func(sb *sandbox, ctx context.Context) (err error) {
		if sb.place == nil {
			return errNoPlace("sync", id)
		}
		out, err = sb.Push(ctx)
		return err
	})
	if err != nil { // the sync may still run, and write to out
		return nil, err
	}
	return out, nil
}

// RestoreSandbox makes the files of a sandbox equal to a version. It pushes the current files
// first, so nothing is lost. Version 0 means the version that is the latest before that push. If
// ctx ends, the restore still continues to its end. Kinds: those of SyncSandbox; ErrNotExist (no
// such version).
func (s *Service) RestoreSandbox(ctx context.Context, id string, version int64) (*agent.SyncStats, error) {
	var out *agent.SyncStats
	err := s.withSandbox(ctx, "restore", id, true, func(sb *sandbox, ctx context.Context) (err error) {
		if sb.place == nil {
			return errNoPlace("restore", id)
		}
		if version == 0 {
			if version, err = sb.latestVersion(ctx); err != nil {
				return err
			}
		}
		if _, err := sb.place.Remote.Push(ctx, sb.syncedTree(), filesync.PushOptions{}); err != nil {
			return err
		}
		if out, err = sb.pullVersion(ctx, version); err != nil {
			return err
		}
		return sb.runSetup(ctx)
	})
	if err != nil { // the sync may still run, and write to out
		return nil, err
	}
	return out, nil
}

// latestVersion returns the number of the latest version.
func (sb *sandbox) latestVersion(ctx context.Context) (int64, error) {
	for i, err := range sb.place.Remote.Versions(ctx) {
		if err != nil || i.Latest {
			return i.Version, err
		}
	}
	return 0, atoll.Errorf("restore", sb.record.ID, atoll.ErrNotExist, "no version yet: sync the sandbox first")
}

// Versions lists the versions of a sandbox's files, oldest first. Kinds: ErrNotExist,
// ErrUnsupported.
func (s *Service) Versions(ctx context.Context, id string) (all []agent.SandboxVersion, err error) {
	sb, err := s.peekSandbox(ctx, "versions", id)
	if err != nil {
		return nil, err
	}
	if sb.place == nil {
		return nil, errNoPlace("versions", id)
	}
	for i, err := range sb.place.Remote.Versions(ctx) {
		if err != nil {
			return nil, err
		}
		all = append(all, agent.SandboxVersion{Version: i.Version, Latest: i.Latest, Pushed: i.Pushed})
	}
	return all, nil
}

// peekSandbox opens a sandbox of the caller for reading, whether a turn runs or not.
func (s *Service) peekSandbox(ctx context.Context, op, id string) (*sandbox, error) {
	record, err := s.findSandbox(ctx, id)
	if err != nil {
		return nil, err
	}
	tpl, err := s.opts.Templates.Get(record.Template, record.Agent)
	if err != nil {
		return nil, err
	}
	return s.openSandbox(ctx, tpl, &agent.Conversation{ID: record.Conversation, Account: record.Account, Agent: record.Agent}, record)
}

// DeleteSandbox pushes the files of a sandbox if its template's policy requires it, runs the
// hook OnTerminate and removes the sandbox. It removes the data volume too, unless that has the
// only copy of the files. The record remains, marked as deleted, and the next prompt to the
// conversation creates the sandbox again.
//
// If a step fails, the others still run, and their errors are returned together: for example
// files that were not pushed, or a template that no longer exists. Kinds: ErrNotExist,
// ErrConflict (a turn runs), those of the push, of the hook and of the removal.
func (s *Service) DeleteSandbox(ctx context.Context, id string) error {
	return s.withSandbox(ctx, "delete", id, false, (*sandbox).endSandbox)
}

// endSandbox removes the sandbox, and marks its record as deleted.
func (sb *sandbox) endSandbox(ctx context.Context) error {
	var failed []error
	if sb.instance != nil {
		failed = sb.terminateInstance(ctx)
	}
	err := sb.service.updateSandbox(ctx, sb.record.Account, sb.record.ID, func(record *store.AgentSandbox) { record.Deleted = time.Now() })
	return errors.Join(append(failed, err)...)
}

// pushLast pushes the files of a sandbox before its removal. It starts the sandbox if it has
// stopped.
func (sb *sandbox) pushLast(ctx context.Context) error {
	stats, err := sb.Push(ctx) // some providers have files of stopped sandboxes too
	if atoll.KindOf(err) == atoll.ErrStopped {
		if err := sb.instance.Start(ctx); err != nil {
			return err
		}
		stats, err = sb.Push(ctx)
	}
	if err == nil && stats.Failed > 0 {
		err = atoll.Errorf("push", sb.record.ID, atoll.ErrUnavailable, "%d files were not pushed: its volume is kept", stats.Failed)
	}
	return err
}

// terminateInstance removes the instance, and returns the errors of all steps.
func (sb *sandbox) terminateInstance(ctx context.Context) (failed []error) {
	data := sb.hookData()
	safe := sb.policy == template.PolicyEphemeral
	if sb.pushesFiles() {
		err := sb.pushLast(ctx)
		if safe = err == nil; err != nil {
			failed = append(failed, err)
		}
	}
	if err := sb.service.opts.Hooks.Terminate(ctx, sb.template.Hooks, data); err != nil {
		failed = append(failed, err)
	}
	var opts []atoll.RemoveOption
	if safe && sb.policy != template.PolicyPersistent {
		opts = append(opts, atoll.RemoveVolumes())
	}
	if err := sb.instance.Remove(ctx, opts...); err != nil {
		failed = append(failed, err)
	}
	return slices.Clip(failed)
}
