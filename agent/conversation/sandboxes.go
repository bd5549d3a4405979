package conversation

import (
	"cmp"
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
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
	record, unlock, err := s.lockRecord(ctx, &c, id)
	if err != nil {
		return agent.Sandbox{}, err
	}
	defer unlock()
	if record.Rev != 0 {
		return agent.Sandbox{}, atoll.Errorf("create", id, atoll.ErrAlreadyExists, "a sandbox with this id exists")
	}
	sb, err := s.openSandbox(ctx, tpl, &c, record)
	if err != nil {
		return agent.Sandbox{}, err
	}
	if instance, err := sb.findInstance(ctx); err != nil || instance != nil {
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

// SyncSandbox pushes the files of a sandbox. Kinds: ErrNotExist, ErrNotFound (the sandbox is
// gone), ErrConflict (a turn runs), ErrUnsupported (there is no object storage).
func (s *Service) SyncSandbox(ctx context.Context, id string) (*agent.SyncStats, error) {
	var out *agent.SyncStats
	err := s.withSandbox(ctx, "sync", id, liveAccess, func(ctx context.Context, sb *sandbox) (err error) {
		if sb.place == nil {
			return errNoPlace("sync", id)
		}
		out, err = sb.Push(ctx)
		return err
	})
	if err != nil { // the operation may still run, and write to out
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
	err := s.withSandbox(ctx, "restore", id, liveAccess, func(ctx context.Context, sb *sandbox) (err error) {
		if sb.place == nil {
			return errNoPlace("restore", id)
		}
		if version == 0 {
			if version, err = sb.latestVersion(ctx); err != nil {
				return err
			}
		}
		saved, err := sb.place.Remote.Push(ctx, sb.syncedTree(), filesync.PushOptions{})
		if err != nil {
			return err
		}
		if saved.Failed > 0 {
			return atoll.Errorf("restore", id, atoll.ErrUnavailable, "%d files could not be saved first, so nothing was restored: make them readable, and try again", saved.Failed)
		}
		if out, err = sb.pullVersion(ctx, version); err != nil {
			return err
		}
		return sb.runSetup(ctx)
	})
	if err != nil { // the operation may still run, and write to out
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
	err = s.withSandbox(ctx, "versions", id, readAccess, func(ctx context.Context, sb *sandbox) error {
		if sb.place == nil {
			return errNoPlace("versions", id)
		}
		for i, err := range sb.place.Remote.Versions(ctx) {
			if err != nil {
				return err
			}
			all = append(all, agent.SandboxVersion{Version: i.Version, Latest: i.Latest, Pushed: i.Pushed})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
