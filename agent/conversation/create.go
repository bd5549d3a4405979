package conversation

import (
	"bytes"
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// ensureSandbox returns the sandbox of a turn, running. It starts or recreates a linked sandbox
// if necessary, or creates a new one. If it fails, it leaves nothing that did not exist before.
func (t *turn) ensureSandbox() (sb *sandbox, err error) {
	record, unlock, err := t.service.lockRecord(t.ctx, &t.conversation, t.conversation.Turn.Sandbox)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if sb, err = t.service.openSandbox(t.ctx, t.template, &t.conversation, record); err != nil {
		return nil, err
	}
	if t.conversation.Sandbox == "" && sb.place != nil { // the store may be newer than the conversation
		if err := t.restoreHistory(t.ctx, sb); err != nil {
			return nil, err
		}
	}
	sb.turn = t.number
	if sb.undo, err = sb.startOrCreate(t.ctx); err != nil {
		return nil, err
	}
	if err := t.lease.updateRecord(t.ctx, func(c *store.Conversation) { c.Sandbox = record.ID }); err != nil {
		sb.undo()
		return nil, err
	}
	return sb, nil
}

// lockRecord locks the sandbox ref against creation and changes of its link, and returns its
// record as sandboxRecord does. The caller calls unlock.
func (s *Service) lockRecord(ctx context.Context, c *agent.Conversation, ref string) (record *store.AgentSandbox, unlock func(), err error) {
	unlock, err = s.sandboxLocks.Lock(ctx, accountKey(c.Account, ref))
	if err != nil {
		return nil, nil, err
	}
	if record, err = s.sandboxRecord(ctx, c, ref); err != nil {
		unlock()
		return nil, nil, err
	}
	return record, unlock, nil
}

// sandboxRecord returns the record of the sandbox ref for the conversation c. A record without
// Rev is new.
func (s *Service) sandboxRecord(ctx context.Context, c *agent.Conversation, ref string) (*store.AgentSandbox, error) {
	record, err := s.store.FindSandbox(ctx, c.Account, ref)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return &store.AgentSandbox{Sandbox: agent.Sandbox{
			ID: ref, Account: c.Account, Organization: c.Organization, Agent: c.Agent, Template: c.Template, Conversation: c.ID, Created: time.Now(),
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	taken := record.Conversation != "" && record.Conversation != c.ID
	created := record.External != ""
	if taken && (!created || !record.Deleted.IsZero()) {
		if taken, err = s.isClaimed(ctx, record); err != nil {
			return nil, err
		}
		created = created && taken
	}
	switch {
	case taken:
		return nil, atoll.Errorf("send", c.ID, atoll.ErrConflict, "sandbox %s belongs to conversation %s", ref, record.Conversation)
	case !created: // or deleted with its conversation
		record.Template = c.Template
	case record.Template != c.Template:
		return nil, atoll.Errorf("send", c.ID, atoll.ErrConflict, "sandbox %s was created with provider %s, not %s", ref, record.Template, c.Template)
	}
	if record.Conversation != c.ID {
		record.Conversation, record.Agent, record.Organization = c.ID, c.Agent, c.Organization
	}
	return record, nil
}

// isClaimed reports whether the record's conversation will use the sandbox, which does not exist: a turn is creating it, or the
// next one does again.
func (s *Service) isClaimed(ctx context.Context, record *store.AgentSandbox) (bool, error) {
	c, err := s.store.FindConversation(ctx, record.Account, record.Conversation)
	switch {
	case atoll.KindOf(err) == atoll.ErrNotExist:
		return false, nil
	case err != nil:
		return false, err
	case record.External != "":
		return true, nil
	}
	return c.Turn != nil && c.Turn.Sandbox == record.ID, nil
}

// startOrCreate makes the sandbox run, and saves its record. undo takes that back.
func (sb *sandbox) startOrCreate(ctx context.Context) (undo func(), err error) {
	instance, err := sb.findInstance(ctx)
	switch {
	case err != nil:
		return nil, err
	case instance == nil:
		return sb.createInstance(ctx)
	}
	status, err := instance.Status(ctx)
	if err != nil {
		return nil, err
	}
	owner, ours := status.Spec.Labels[agent.LabelAccount]
	if cmp.Or(owner, auth.DefaultAccount) != sb.conversation.Account { // only the label names the owner
		return nil, atoll.Errorf("send", sb.record.ID, atoll.ErrNotExist, "this account has no such sandbox: a sandbox that was not created for a conversation needs the label %s=%s", agent.LabelAccount, sb.conversation.Account)
	}
	if ours && sb.record.Rev != 0 && !sb.record.Deleted.IsZero() { // its creator died before it was ready
		return sb.recreateInstance(ctx, instance, sb.record.External == "")
	}
	sb.instance = instance
	err = startInstance(ctx, instance, status.State)
	switch atoll.KindOf(err) {
	case "":
		return sb.linkConversation(ctx)
	case atoll.ErrUnsupported, atoll.ErrNotFound: // the instance cannot start again
		return sb.recreateInstance(ctx, instance, false)
	}
	return nil, err
}

// linkConversation links an existing sandbox with the conversation. undo removes a record that
// is new.
func (sb *sandbox) linkConversation(ctx context.Context) (undo func(), err error) {
	undo = func() {}
	if sb.record.Rev == 0 {
		undo = func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer cancel()
			if err := sb.service.store.DeleteSandbox(ctx, sb.record); err != nil {
				sb.service.log.Error("conversation: cannot delete the record of a turn that failed to start", "sandbox", sb.record.ID, "err", err)
			}
		}
	}
	return undo, sb.saveRecord(ctx)
}

// recreateInstance removes the instance, and creates it again. The data volume is retained
// unless the instance is empty, which means that it never became ready.
func (sb *sandbox) recreateInstance(ctx context.Context, instance atoll.Sandbox, empty bool) (undo func(), err error) {
	var opts []atoll.RemoveOption
	if empty {
		opts = append(opts, atoll.RemoveVolumes())
	} else {
		sb.record.External = instance.ID()
	}
	if err := instance.Remove(ctx, opts...); err != nil {
		return nil, err
	}
	return sb.createInstance(ctx)
}

// findInstance returns the instance at the provider, nil if there is none.
func (sb *sandbox) findInstance(ctx context.Context) (instance atoll.Sandbox, err error) {
	if sb.record.External != "" {
		instance, err = sb.service.provider.Get(ctx, sb.record.External)
	} else {
		instance, err = atoll.Resolve(ctx, sb.service.provider, sb.template.Spec.Project, sb.record.ID)
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil, nil
	}
	return instance, err
}

// startInstance starts an instance that is not running.
func startInstance(ctx context.Context, instance atoll.Sandbox, state atoll.State) error {
	switch state {
	case atoll.StateRunning:
		return nil
	case atoll.StatePaused:
		return atoll.Resume(ctx, instance)
	}
	return instance.Start(ctx)
}

// createInstance creates the instance. It saves the record twice: as deleted before the
// creation, and as usable when the instance is ready.
func (sb *sandbox) createInstance(ctx context.Context) (_ func(), err error) {
	record := sb.record
	again := record.External != ""
	var undos []func(context.Context) error
	undo := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if now, err := sb.service.store.FindSandbox(ctx, record.Account, record.ID); err == nil && now.Conversation != record.Conversation {
			return // another server now creates it for another conversation
		}
		for i := len(undos) - 1; i >= 0; i-- {
			if err := undos[i](ctx); err != nil {
				sb.service.log.Error("conversation: cannot take back a failed creation", "sandbox", record.ID, "err", err)
			}
		}
	}
	defer func() {
		if err != nil {
			undo()
		}
	}()
	spec, err := sb.instanceSpec(ctx)
	if err != nil {
		return nil, err
	}
	record.Deleted = time.Now()
	if record.Rev == 0 {
		err = sb.service.store.InsertSandbox(ctx, record)
	} else {
		err = sb.service.store.UpdateSandbox(ctx, record)
	}
	if err != nil {
		return nil, err
	}
	if !again {
		undos = append(undos, func(ctx context.Context) error { return sb.service.store.DeleteSandbox(ctx, record) })
	}
	sb.service.opts.onStep("creating")
	if sb.instance, err = sb.service.provider.Create(auth.WithTrustedSpec(ctx), spec); err != nil {
		return nil, err
	}
	undos = append(undos, func(ctx context.Context) error {
		if again { // the volume is older than this creation
			return sb.instance.Remove(ctx)
		}
		return sb.instance.Remove(ctx, atoll.RemoveVolumes())
	})
	sb.service.opts.onStep("created")
	if err := sb.service.opts.Hooks.ColdStart(ctx, sb.template.Hooks, sb.hookData()); err != nil {
		return nil, err
	}
	sb.service.opts.onStep("cold start")
	if err := sb.runSetup(ctx); err != nil {
		return nil, err
	}
	return undo, sb.saveRecord(ctx)
}

// undoTimeout limits the time to take back a failed creation.
const undoTimeout = time.Minute

// saveRecord saves the record with the id of the instance.
func (sb *sandbox) saveRecord(ctx context.Context) error {
	record := sb.record
	record.External, record.Deleted = sb.instance.ID(), time.Time{}
	if record.Rev == 0 { // an existing sandbox without a record
		return sb.service.store.InsertSandbox(ctx, record)
	}
	return sb.service.store.UpdateSandbox(ctx, record)
}

// instanceSpec returns the spec of the instance. Its id or its name is that of the record, so
// findInstance finds the instance at any later time.
func (sb *sandbox) instanceSpec(ctx context.Context) (*atoll.Spec, error) {
	spec, err := sb.template.SpecFor(sb.templateNames())
	if err != nil {
		return nil, err
	}
	if spec.Labels == nil {
		spec.Labels = map[string]string{}
	}
	spec.Labels[agent.LabelAccount], spec.Labels[agent.LabelTemplate] = sb.conversation.Account, sb.template.Name
	spec.ID = sb.record.External
	if id, err := atoll.NormalizeID(sb.record.ID); spec.ID == "" && err == nil { // a warm sandbox of a pool has its own id
		ready, err := atoll.Reserve(auth.WithTrustedSpec(ctx), sb.service.provider, spec)
		if err != nil {
			return nil, err
		}
		spec.ID = cmp.Or(ready, id)
	}
	if spec.ID != sb.record.ID {
		spec.Name = sb.record.ID
	}
	return spec, nil
}

// setupTimeout limits the run of one setup command of a template.
const setupTimeout = 10 * time.Minute

// runSetup runs the template's setup commands in a new sandbox.
func (sb *sandbox) runSetup(ctx context.Context) error {
	for _, cmd := range sb.template.Setup() {
		var out bytes.Buffer
		cmd.Timeout, cmd.Stdout, cmd.Stderr = atoll.Duration(setupTimeout), &out, &out
		if err := atoll.Run(ctx, sb.instance, cmd); err != nil {
			return atoll.Errorf("set up", sb.record.ID, atoll.KindOf(err), "%s: %w: %s", strings.Join(cmd.Args, " "), err, outputTail(out.Bytes()))
		}
	}
	return nil
}
