package conversation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// DeleteConversation deletes a conversation, its messages and its history in object storage, and
// its sandbox, as DeleteSandbox does. A sandbox that was not created for an agent is kept, unless o
// says to remove it. Pushed versions of files remain.
//
// If the push or the removal of the sandbox fails, the conversation remains. Later failures, and a
// template that no longer exists, are warnings of the result. A failure to delete the history is a
// warning only with o.Force: else the conversation remains, and can be deleted again. Kinds: ErrNotExist,
// ErrConflict (a turn runs), those of DeleteSandbox.
func (s *Service) DeleteConversation(ctx context.Context, id string, o agent.DeleteOptions) (agent.Deletion, error) {
	c, err := s.findConversation(ctx, id)
	if err != nil {
		return agent.Deletion{}, err
	}
	var done agent.Deletion
	err = s.withConversation(ctx, c, c.Sandbox, func(ctx context.Context, t *turn) (err error) {
		c := &t.conversation
		if done, err = s.detachSandbox(ctx, c, o); err != nil {
			return err
		}
		if c.Sandbox != "" {
			if err := s.deleteHistory(ctx, c); err != nil && !o.Force && !s.isTemplateLost(c) {
				return atoll.Errorf("delete", c.ID, storageKind(err), "delete history: %w; its sandbox is %s, and the conversation remains: try again, or delete it with force=true", err, done.Outcome)
			} else if err != nil {
				done.Warnings = append(done.Warnings, errorText(fmt.Errorf("the history in object storage was not deleted: %w", err)))
			}
		}
		return t.deleteConversation()
	})
	if err != nil { // the operation may still run, and write to done
		return agent.Deletion{}, err
	}
	return done, nil
}

// isTemplateLost reports whether the template of a conversation no longer exists.
func (s *Service) isTemplateLost(c *agent.Conversation) bool {
	_, err := s.opts.Templates.Get(c.Template, c.Agent)
	return err != nil
}

// detachSandbox deletes the sandbox of a conversation that is about to be deleted, or unlinks it.
func (s *Service) detachSandbox(ctx context.Context, c *agent.Conversation, o agent.DeleteOptions) (done agent.Deletion, err error) {
	none := agent.Deletion{Outcome: agent.SandboxNone}
	if c.Sandbox == "" {
		return none, nil
	}
	record, err := s.store.FindSandbox(ctx, c.Account, c.Sandbox)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	kept := agent.Deletion{Sandbox: record.ID, Outcome: agent.SandboxKept}
	switch {
	case record.Conversation == "" && record.Deleted.IsZero(): // an earlier deletion has unlinked it, and then failed
		return kept, nil
	case record.Conversation != c.ID:
		return none, nil
	}
	if o.Sandbox == agent.SandboxKeep {
		return kept, s.unlinkSandbox(ctx, c, record.ID)
	}
	err = s.useSandbox(ctx, "delete", c, record, accessToDelete(o), func(ctx context.Context, sb *sandbox) error {
		adopted, err := sb.isAdopted(ctx)
		if err != nil {
			return err
		}
		if adopted && o.Sandbox != agent.SandboxRemove {
			done = kept
			done.Warnings = []string{"sandbox " + record.ID + " was not created for an agent, so it is kept: to remove it, delete it with DELETE /v1/sandbox/" + record.ID}
			return s.unlinkSandbox(ctx, c, record.ID)
		}
		done, err = sb.endSandbox(ctx, o.Force)
		return err
	})
	return done, err
}

// accessToDelete returns the access for a deletion.
func accessToDelete(o agent.DeleteOptions) access {
	if o.Force {
		return forceAccess
	}
	return removeAccess
}

// isAdopted reports whether the instance is a sandbox that was not created from a template.
func (sb *sandbox) isAdopted(ctx context.Context) (bool, error) {
	if sb.instance == nil {
		return false, nil
	}
	status, err := sb.instance.Status(ctx)
	if err != nil {
		return false, err
	}
	_, ours := status.Spec.Labels[agent.LabelTemplate]
	return !ours, nil
}

// DeleteSandbox pushes the files of a sandbox if its template's policy requires it, runs the
// hook OnTerminate and removes the sandbox. It removes the data volume too, unless that has the
// only copy of the files. The record remains, marked as deleted, and the next prompt to the
// conversation creates the sandbox again.
//
// If the files cannot be pushed, nothing is deleted. With o.Force the sandbox is removed
// nevertheless, and its data volume remains. Files that were not pushed, an error of the hook and a
// template that no longer exists are warnings of the result. Kinds: ErrNotExist, ErrConflict (a turn
// runs), those of the push and of the removal.
func (s *Service) DeleteSandbox(ctx context.Context, id string, o agent.DeleteOptions) (agent.Deletion, error) {
	var done agent.Deletion
	err := s.withSandbox(ctx, "delete", id, accessToDelete(o), func(ctx context.Context, sb *sandbox) (err error) {
		done, err = sb.endSandbox(ctx, o.Force)
		return err
	})
	if err != nil { // the operation may still run, and write to done
		return agent.Deletion{}, err
	}
	return done, nil
}

// endSandbox removes the sandbox, and marks its record as deleted.
func (sb *sandbox) endSandbox(ctx context.Context, force bool) (agent.Deletion, error) {
	done := agent.Deletion{Sandbox: sb.record.ID, Outcome: agent.SandboxRemoved}
	if sb.instance != nil {
		if err := sb.terminateInstance(ctx, force, &done); err != nil {
			return done, err
		}
	}
	done.Warnings = append(done.Warnings, sb.warnings...)
	return done, sb.service.updateSandbox(ctx, sb.record.Account, sb.record.ID, func(record *store.AgentSandbox) { record.Deleted = time.Now() })
}

// terminateInstance pushes the files, runs the hook and removes the instance. It adds the version and
// the warnings to done.
func (sb *sandbox) terminateInstance(ctx context.Context, force bool, done *agent.Deletion) error {
	safe := sb.policy == template.PolicyEphemeral
	if sb.pushesFiles() {
		stats, err := sb.pushLast(ctx)
		if err != nil && !force {
			return pushError(sb.record.ID, err)
		}
		if safe = err == nil; safe {
			done.Version = stats.Version
		} else {
			done.Warnings = append(done.Warnings, errorText(fmt.Errorf("its files were not pushed, and its data volume is kept: %w", err)))
		}
	}
	data := sb.hookData()
	if err := sb.service.opts.Hooks.Terminate(ctx, sb.template.Hooks, data); err != nil {
		done.Warnings = append(done.Warnings, errorText(err))
	}
	var opts []atoll.RemoveOption
	if safe && sb.policy != template.PolicyPersistent {
		opts = append(opts, atoll.RemoveVolumes())
	}
	return sb.instance.Remove(ctx, opts...)
}

// pushError returns the error of a deletion whose push has failed.
func pushError(id string, err error) error {
	return atoll.Errorf("delete", id, storageKind(err), "nothing was deleted, since its files cannot be pushed: %w; try again, or delete it with force=true, which keeps its data volume", err)
}

// storageKind returns the kind of an error of object storage in an operation on a conversation or a sandbox, which
// exist.
func storageKind(err error) atoll.Kind {
	kind := atoll.KindOf(err)
	if kind == atoll.ErrNotExist || kind == atoll.ErrNotFound {
		return atoll.ErrUnavailable
	}
	return kind
}

// stopGrace is the time that the main process gets to end when a push has failed.
const stopGrace = 5 * time.Second

// pushLast pushes the files of a sandbox before its removal. It starts or resumes the sandbox if
// that is needed, and stops it again if the push fails.
func (sb *sandbox) pushLast(ctx context.Context) (*agent.SyncStats, error) {
	stats, err := sb.Push(ctx) // some providers have files of stopped sandboxes too
	if atoll.KindOf(err) == atoll.ErrStopped {
		status, err := sb.instance.Status(ctx)
		if err == nil {
			err = startInstance(ctx, sb.instance, status.State)
		}
		if err != nil {
			return nil, err
		}
		if stats, err = sb.Push(ctx); err != nil {
			if status.State == atoll.StatePaused {
				return stats, errors.Join(err, atoll.Pause(ctx, sb.instance))
			}
			return stats, errors.Join(err, sb.instance.Stop(ctx, stopGrace))
		}
	}
	if err == nil && stats.Failed > 0 {
		err = atoll.Errorf("push", sb.record.ID, atoll.ErrUnavailable, "%d files could not be read", stats.Failed)
	}
	return cmp.Or(stats, &agent.SyncStats{}), err
}
