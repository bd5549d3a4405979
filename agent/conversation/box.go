package conversation

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/agent/hooks"
	"github.com/seed46cd37a8/atoll/agent/template"
	"github.com/seed46cd37a8/atoll/server/auth"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A box is a sandbox with what belongs to it, while something is done with it.
type box struct {
	v            *Service
	template     *template.Template
	conversation agent.Conversation // that it is linked with; only its Account and Agent if it is with none
	record       *store.AgentSandbox
	sandbox      atoll.Sandbox // nil while it is not known
	place        *Place        // nil if its files are kept nowhere
	policy       template.Policy

	turn int64            // the number of the turn that runs in it
	said []*agent.Message // in that, and not yet in its history
	size int              // of said, in bytes
	part int              // how many chapters there are of that turn

	undo func() // takes back what was done to have the sandbox
}

// books are where hooks write messages and tokens down, those of a turn once.
type books struct {
	store.Conversations
	turn int64
}

// AddUsage implements hooks.Messages.
func (b books) AddUsage(ctx context.Context, account, conversation string, u agent.TokenUsage) error {
	return b.Conversations.AddUsage(ctx, account, conversation, b.turn, u)
}

// open returns what belongs to the sandbox of a record, without the sandbox.
func (v *Service) open(ctx context.Context, tpl *template.Template, c *agent.Conversation, x *store.AgentSandbox) (*box, error) {
	b := &box{v: v, template: tpl, conversation: *c, record: x}
	at, err := tpl.Place(b.names(), v.opts.Store)
	if err != nil {
		return nil, err
	}
	if b.policy, err = tpl.PolicyFor(at != ""); err != nil || at == "" {
		return b, err
	}
	b.place, err = v.opts.Open(ctx, at)
	return b, err
}

// pushes reports whether what is in the sandbox is pushed without being asked for.
func (b *box) pushes() bool { return b.place != nil && b.policy == template.PolicySynced }

// names are what stands in a template's patterns. A sandbox that no conversation is
// linked with has its files where one of its own id would.
func (b *box) names() template.Names {
	of := b.conversation.ID
	if of == "" {
		of = b.record.ID
	}
	return template.Names{Account: b.conversation.Account, Agent: b.conversation.Agent, Conversation: of, Sandbox: b.record.ID}
}

// data is what hooks are told.
func (b *box) data() *hooks.HookData {
	info := b.record.Sandbox
	d := &hooks.HookData{
		ConversationID: b.conversation.ID, Account: b.conversation.Account, Agent: b.conversation.Agent, SandboxInfo: &info, Sandbox: b.sandbox,
	}
	d.Services.Messages, d.Services.Log = books{b.v.store, b.turn}, b.v.log
	d.Services.InitFromS3, d.Services.NoPush = b.template.InitFromS3, !b.pushes()
	if b.place != nil {
		d.Services.Files = b
	}
	return d
}

// tree is the directory that is kept in step.
func (b *box) tree() filesync.Tree {
	return filesync.Tree{FS: atoll.Files(b.sandbox), Dir: b.template.WorkDir()}
}

// Pull implements hooks.Files: it brings the latest version into the sandbox, or
// nothing where its state is not stale.
func (b *box) Pull(ctx context.Context) (*agent.SyncStats, error) { return b.pull(ctx, 0) }

// pull is Pull of a version, 0 for the latest one.
func (b *box) pull(ctx context.Context, version int64) (*agent.SyncStats, error) {
	o := filesync.PullOptions{Version: version}
	if version == 0 {
		o.IfStale = b.v.opts.Stale
	}
	st, err := b.place.Remote.Pull(ctx, b.tree(), o)
	return b.synced(ctx, st, err)
}

// Push implements hooks.Files: it makes what is in the sandbox the latest version,
// and removes the versions that the template does not keep.
func (b *box) Push(ctx context.Context) (*agent.SyncStats, error) {
	st, err := b.place.Remote.Push(ctx, b.tree(), filesync.PushOptions{})
	out, err := b.synced(ctx, st, err)
	keep := filesync.Keep{Last: b.template.KeepVersions, Within: time.Duration(b.template.KeepDays) * 24 * time.Hour}
	if err == nil && keep != (filesync.Keep{}) {
		if _, err := b.place.Remote.Prune(ctx, keep); err != nil {
			b.v.log.Warn("conversation: old versions were not removed", "at", b.place.Remote.String(), "err", err)
		}
	}
	return out, err
}

// synced writes down what a push or a pull did.
func (b *box) synced(ctx context.Context, st *filesync.Stats, err error) (*agent.SyncStats, error) {
	var out *agent.SyncStats
	if st != nil {
		out = &agent.SyncStats{
			Version: st.Version, FilesDownloaded: st.FilesDownloaded, FilesUploaded: st.FilesUploaded, FilesDeleted: st.FilesDeleted,
			FilesSkipped: st.FilesSkipped, BytesTransferred: st.BytesTransferred, Duration: st.Duration.Milliseconds(),
			Conflicts: len(st.Conflicts), Failed: st.Failed,
		}
	}
	meta := b.record.Meta
	if meta.SyncError = ""; err != nil {
		meta.SyncError = short(err)
	} else {
		meta.LastSync, meta.SyncStats = time.Now().Unix(), out
	}
	b.record.Meta = meta
	if !b.record.Deleted.IsZero() { // it is written down with the rest, when it is there
		return out, err
	}
	writeErr := b.v.changeSandbox(context.WithoutCancel(ctx), b.record.Account, b.record.ID, func(x *store.AgentSandbox) { x.Meta = meta })
	if writeErr != nil {
		b.v.log.Warn("conversation: what a sync did could not be written down", "sandbox", b.record.ID, "err", writeErr)
	}
	return out, err
}

// short is an error as it can be written down, whatever files it names.
func short(err error) string {
	text := strings.ToValidUTF8(err.Error(), "�")
	if len(text) > maxSyncError {
		text = strings.ToValidUTF8(text[:maxSyncError], "") + "..."
	}
	return text
}

const maxSyncError = 4 << 10

// changeSandbox changes what is written down of a sandbox.
func (v *Service) changeSandbox(ctx context.Context, account, id string, change func(*store.AgentSandbox)) error {
	for {
		x, err := v.store.FindSandbox(ctx, account, id)
		if err != nil {
			return err
		}
		change(x)
		if err := v.store.UpdateSandbox(ctx, x); !errors.Is(err, store.ErrChanged) {
			return err
		}
	}
}

// ensure returns the sandbox of a turn, running: the one that is linked, started or
// made again if it must be, or a new one. When it fails, there is nothing that was not
// there before.
func (v *Service) ensure(ctx context.Context, t *turn) (b *box, err error) {
	ref := t.conversation.Turn.Sandbox
	unlock, err := v.locks.Lock(ctx, key(t.conversation.Account, ref))
	if err != nil {
		return nil, err
	}
	defer unlock()
	x, err := v.record(ctx, &t.conversation, ref)
	if err != nil {
		return nil, err
	}
	if b, err = v.open(ctx, t.template, &t.conversation, x); err != nil {
		return nil, err
	}
	if t.conversation.Sandbox == "" && b.place != nil { // it may have been here before the store was
		if err := t.remember(ctx, b); err != nil {
			return nil, err
		}
	}
	b.turn = t.turns
	if b.undo, err = b.bring(ctx); err != nil {
		return nil, err
	}
	if err := t.update(func(c *store.Conversation) { c.Sandbox = x.ID }); err != nil {
		b.undo()
		return nil, err
	}
	return b, nil
}

// record returns what is known of the sandbox that a conversation is to have; one
// without Rev is not known.
func (v *Service) record(ctx context.Context, c *agent.Conversation, ref string) (*store.AgentSandbox, error) {
	x, err := v.store.FindSandbox(ctx, c.Account, ref)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return &store.AgentSandbox{Sandbox: agent.Sandbox{
			ID: ref, Account: c.Account, Organization: c.Organization, Agent: c.Agent, Template: c.Template, Conversation: c.ID, Created: time.Now(),
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	taken := x.Conversation != "" && x.Conversation != c.ID
	if taken && x.External == "" { // another server may be making it
		if taken, err = v.making(ctx, x); err != nil {
			return nil, err
		}
	}
	switch {
	case taken:
		return nil, atoll.Errorf("send", c.ID, atoll.ErrConflict, "sandbox %s is that of conversation %s", ref, x.Conversation)
	case x.External == "": // it never came to be
		x.Template = c.Template
	case x.Template != c.Template:
		return nil, atoll.Errorf("send", c.ID, atoll.ErrConflict, "sandbox %s was made for provider %s, not %s", ref, x.Template, c.Template)
	}
	if x.Conversation != c.ID {
		x.Conversation, x.Agent, x.Organization = c.ID, c.Agent, c.Organization
	}
	return x, nil
}

// making reports whether a turn of the conversation of x runs, which makes its sandbox.
func (v *Service) making(ctx context.Context, x *store.AgentSandbox) (bool, error) {
	c, err := v.store.FindConversation(ctx, x.Account, x.Conversation)
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return false, nil
	}
	return err == nil && c.Turn != nil && c.Turn.Sandbox == x.ID, err
}

// Labels of sandboxes that are made from templates.
const (
	LabelAccount  = "account"
	LabelTemplate = "template"
)

// bring makes the sandbox run, and writes it down. undo takes back what it did.
func (b *box) bring(ctx context.Context) (undo func(), err error) {
	sb, err := b.look(ctx)
	switch {
	case err != nil:
		return nil, err
	case sb == nil:
		return b.create(ctx)
	}
	st, err := sb.Status(ctx)
	if err != nil {
		return nil, err
	}
	owner, ours := st.Spec.Labels[LabelAccount]
	if cmp.Or(owner, auth.DefaultAccount) != b.conversation.Account { // the label is all that says whose one is
		return nil, atoll.Errorf("send", b.record.ID, atoll.ErrNotExist, "there is no such sandbox of this account: one that was not made for a conversation needs the label %s=%s", LabelAccount, b.conversation.Account)
	}
	if ours && b.record.Rev != 0 && !b.record.Deleted.IsZero() { // it was not ready when its maker died
		return b.replace(ctx, sb, b.record.External == "")
	}
	b.sandbox = sb
	err = wake(ctx, sb, st.State)
	switch atoll.KindOf(err) {
	case "":
		return b.link(ctx)
	case atoll.ErrUnsupported, atoll.ErrNotFound: // it is one that cannot start again
		return b.replace(ctx, sb, false)
	}
	return nil, err
}

// link writes down that a sandbox which is there is that of the conversation. Who undoes
// it forgets what was not known before.
func (b *box) link(ctx context.Context) (undo func(), err error) {
	undo = func() {}
	if b.record.Rev == 0 {
		undo = func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
			defer cancel()
			if err := b.v.store.DeleteSandbox(ctx, b.record); err != nil {
				b.v.log.Error("conversation: what a turn that could not begin has written down is still there", "sandbox", b.record.ID, "err", err)
			}
		}
	}
	return undo, b.write(ctx)
}

// replace makes the sandbox again, which keeps its volume unless that is empty: then
// it never was more than begun.
func (b *box) replace(ctx context.Context, sb atoll.Sandbox, empty bool) (undo func(), err error) {
	var opts []atoll.RemoveOption
	if empty {
		opts = append(opts, atoll.RemoveVolumes())
	} else {
		b.record.External = sb.ID()
	}
	if err := sb.Remove(ctx, opts...); err != nil {
		return nil, err
	}
	return b.create(ctx)
}

// look finds the sandbox, nil if there is none.
func (b *box) look(ctx context.Context) (sb atoll.Sandbox, err error) {
	if b.record.External != "" {
		sb, err = b.v.provider.Get(ctx, b.record.External)
	} else {
		sb, err = atoll.Resolve(ctx, b.v.provider, b.template.Spec.Project, b.record.ID)
	}
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return nil, nil
	}
	return sb, err
}

// wake starts a sandbox that does not run.
func wake(ctx context.Context, sb atoll.Sandbox, state atoll.State) error {
	switch state {
	case atoll.StateRunning:
		return nil
	case atoll.StatePaused:
		return atoll.Resume(ctx, sb)
	}
	return sb.Start(ctx)
}

// create makes the sandbox. It is written down before, as one that is deleted, and when
// it is ready.
func (b *box) create(ctx context.Context) (_ func(), err error) {
	x := b.record
	again := x.External != ""
	var undos []func(context.Context) error
	undo := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
		defer cancel()
		if now, err := b.v.store.FindSandbox(ctx, x.Account, x.ID); err == nil && now.Conversation != x.Conversation {
			return // another server makes it now, for that
		}
		for i := len(undos) - 1; i >= 0; i-- {
			if err := undos[i](ctx); err != nil {
				b.v.log.Error("conversation: what a failed creation has left is still there", "sandbox", x.ID, "err", err)
			}
		}
	}
	defer func() {
		if err != nil {
			undo()
		}
	}()
	spec, err := b.spec(ctx)
	if err != nil {
		return nil, err
	}
	x.Deleted = time.Now()
	if x.Rev == 0 {
		err = b.v.store.InsertSandbox(ctx, x)
	} else {
		err = b.v.store.UpdateSandbox(ctx, x)
	}
	if err != nil {
		return nil, err
	}
	if !again {
		undos = append(undos, func(ctx context.Context) error { return b.v.store.DeleteSandbox(ctx, x) })
	}
	b.v.opts.step("creating")
	if b.sandbox, err = b.v.provider.Create(auth.Vouch(ctx), spec); err != nil {
		return nil, err
	}
	undos = append(undos, func(ctx context.Context) error {
		if again { // its volume was there before
			return b.sandbox.Remove(ctx)
		}
		return b.sandbox.Remove(ctx, atoll.RemoveVolumes())
	})
	b.v.opts.step("created")
	if err := b.v.opts.Hooks.ColdStart(ctx, b.template.Hooks, b.data()); err != nil {
		return nil, err
	}
	b.v.opts.step("cold start")
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	return undo, b.write(ctx)
}

// undoing is how long taking back a creation may take.
const undoing = time.Minute

// write writes the record down, with the sandbox.
func (b *box) write(ctx context.Context) error {
	x := b.record
	x.External, x.Deleted = b.sandbox.ID(), time.Time{}
	if x.Rev == 0 { // it was there, and not ours
		return b.v.store.InsertSandbox(ctx, x)
	}
	return b.v.store.UpdateSandbox(ctx, x)
}

// spec is what the sandbox is made from. However far that gets, look finds it by its
// id or name, which is the record's.
func (b *box) spec(ctx context.Context) (*atoll.Spec, error) {
	spec, err := b.template.SpecFor(b.names())
	if err != nil {
		return nil, err
	}
	if spec.Labels == nil {
		spec.Labels = map[string]string{}
	}
	spec.Labels[LabelAccount], spec.Labels[LabelTemplate] = b.conversation.Account, b.template.Name
	spec.ID = b.record.External
	if id, err := atoll.NormalizeID(b.record.ID); spec.ID == "" && err == nil { // one that is ready has another one
		ready, err := atoll.Reserve(auth.Vouch(ctx), b.v.provider, spec)
		if err != nil {
			return nil, err
		}
		spec.ID = cmp.Or(ready, id)
	}
	if spec.ID != b.record.ID {
		spec.Name = b.record.ID
	}
	return spec, nil
}
