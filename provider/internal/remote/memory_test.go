package remote_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
	"github.com/seed46cd37a8/atoll/provider/internal/watchhub"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// A cloud is a service in memory, which several providers can share. A run is a sandbox of mock,
// whose data volume has the sandbox's files between runs.
type cloud struct {
	runs *mock.Provider

	mu       sync.Mutex
	records  map[string]*object // by sandbox id
	names    map[remote.VolumeKey]string
	current  map[string]string // the run of each sandbox id
	watchers map[*provider]bool

	onLaunch, onConnect, onDropVolume func(ctx context.Context) error // called before, if not nil
}

// An object is a stored record.
type object struct {
	text     []byte
	revision int
	out      *guest.Printed
}

func newCloud(t testing.TB) *cloud {
	t.Helper()
	runs, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runs.Close() })
	c := &cloud{runs: runs, records: map[string]*object{}, names: map[remote.VolumeKey]string{}, current: map[string]string{}, watchers: map[*provider]bool{}}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	go func() {
		for ev := range runs.Watch(ctx) {
			if ev.Type == atoll.EventState && ev.Status.State != atoll.StateRunning {
				c.recordEnd(ev.Status.ID)
			}
		}
	}()
	return c
}

// recordEnd makes a provider record the end of a run, if the sandbox has just lost one.
func (c *cloud) recordEnd(id string) {
	c.mu.Lock()
	var any *provider
	for any = range c.watchers {
		break
	}
	c.mu.Unlock()
	if any != nil {
		_, _ = backend{any}.Find(context.Background(), "watch", id, remote.Latest)
	}
}

// announce tells all providers the new state of a sandbox. The caller holds c.mu.
func (c *cloud) announce(st atoll.Status) {
	for p := range c.watchers {
		p.publishStatus(st)
	}
}

type (
	record   = remote.Record[int] // with the number of its revision
	creation = remote.Creation[int]
)

// A provider is a provider of a cloud's sandboxes.
type provider struct {
	remote.Provider[int]
	cloud  *cloud
	engine *remote.Engine[int]
	hub    *watchhub.Hub

	published map[string]atoll.Status // guarded by the lock of the cloud
}

// A handle is the handle of a sandbox.
type handle struct{ *remote.Sandbox[int] }

func newProvider(c *cloud, step func(string) error) *provider {
	p := &provider{cloud: c, published: map[string]atoll.Status{}}
	p.hub = watchhub.New(func() ([]atoll.Status, error) { return p.List(context.Background(), atoll.Filter{}) })
	p.engine = remote.New(backend{p}, func(s *remote.Sandbox[int]) atoll.Sandbox { return handle{s} }, remote.Config{
		Name: "cloud", Patience: time.Minute, ReachTimeout: testenv.Scale(3 * time.Second), AnswerTimeout: testenv.Scale(3 * time.Second),
		LeaseTTL: testenv.Scale(3 * time.Second), Log: slog.New(slog.DiscardHandler), Step: step,
	})
	p.Provider = p.engine.Provider()
	c.mu.Lock()
	c.watchers[p] = true
	c.mu.Unlock()
	p.engine.StartSweeps()
	return p
}

func (p *provider) Info() atoll.Info {
	return atoll.Info{Name: "cloud", Isolation: atoll.IsolationNone, Caps: atoll.Caps{
		Durable: atoll.DurableNone, Restart: true, Survives: true, Reattach: true, ExitSignal: true, Extend: true, TTY: true, Files: true, Dial: true, Images: true, Users: true, Volumes: true,
	}}
}

func (p *provider) Watch(ctx context.Context) iter.Seq2[atoll.Event, error] { return p.hub.Watch(ctx) }

func (p *provider) Close() error {
	p.engine.Shut(func() {
		p.cloud.mu.Lock()
		delete(p.cloud.watchers, p)
		p.cloud.mu.Unlock()
		p.hub.Close()
	})
	return nil
}

// publishStatus publishes a state that is new. The caller holds the lock of the cloud.
func (p *provider) publishStatus(st atoll.Status) {
	last, known := p.published[st.ID]
	switch {
	case st.State == atoll.StateRemoved && known:
		delete(p.published, st.ID)
		last.State, last.Ready, last.Reason = atoll.StateRemoved, false, ""
		p.hub.Publish(last)
	case st.State == atoll.StateCreating || st.State == atoll.StateRemoved:
	case !known || last.State != st.State || !last.Started.Equal(st.Started):
		p.published[st.ID] = st
		p.hub.Publish(st)
	}
	p.engine.Sweeper.Wake()
}

// RemoveProject implements atoll.ProjectRemover.
func (p *provider) RemoveProject(ctx context.Context, project string) error {
	return volume.RemoveProject(ctx, p, project)
}

// A backend implements remote.Backend.
type backend struct{ *provider }

func (b backend) Open(ctx context.Context, op string) error { return ctx.Err() }

func (b backend) WrapError(ctx context.Context, op, id string, err error) error {
	switch {
	case err == nil || remote.HasKind(err):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return atoll.E(op, id, atoll.ErrInternal, err)
}

func (b backend) CheckSpec(spec *atoll.Spec) error {
	return spec.CheckCaps("cloud", b.Info().Caps, nil)
}

func (b backend) read(id string) (*record, *object, error) {
	b.cloud.mu.Lock()
	defer b.cloud.mu.Unlock()
	o := b.cloud.records[id]
	if o == nil {
		return nil, nil, atoll.E("get", id, atoll.ErrNotFound, nil)
	}
	r := &record{Object: o.revision}
	r.ID = id
	if err := json.Unmarshal(o.text, &r.Note); err != nil {
		return nil, nil, err
	}
	r.FillStatus("cloud", b.Info().Caps)
	return r, o, nil
}

func (b backend) Find(ctx context.Context, op, id string, as remote.Freshness) (*record, error) {
	r, _, err := b.read(id)
	if err != nil || as == remote.Stored || r.Note.State != atoll.StateRunning {
		return r, err
	}
	end, err := b.endOf(ctx, r)
	if end == nil || err != nil {
		r.Ready = true
		return r, err
	}
	out, err := b.printed(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := b.engine.WriteEnd(ctx, r, end, out); err != nil && !errors.Is(err, remote.ErrDoneElsewhere) {
		return nil, err
	}
	r, _, err = b.read(id)
	return r, err
}

// endOf returns how the run of a sandbox ended; nil if it goes on.
func (b backend) endOf(ctx context.Context, r *record) (*remote.End, error) {
	sb, err := b.runOf(ctx, r)
	if atoll.KindOf(err) == atoll.ErrNotFound {
		return &remote.End{State: atoll.StateFailed, Reason: "its run is gone"}, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := sb.Status(ctx)
	if err != nil || st.State == atoll.StateRunning {
		return nil, err
	}
	return &remote.End{State: st.State, Exit: st.Exit, Reason: st.Reason, At: st.Stopped}, nil
}

// runOf returns the run that a sandbox's note has. Kinds: ErrNotFound.
func (b backend) runOf(ctx context.Context, r *record) (atoll.Sandbox, error) {
	b.cloud.mu.Lock()
	current := b.cloud.current[r.ID]
	b.cloud.mu.Unlock()
	if current != r.Note.Run {
		return nil, atoll.E("get", r.ID, atoll.ErrNotFound, nil)
	}
	return b.cloud.runs.Get(ctx, r.ID)
}

// printed returns what the main process of a run has printed.
func (b backend) printed(ctx context.Context, id string) (*guest.Printed, error) {
	out := guest.NothingPrinted()
	sb, err := b.cloud.runs.Get(ctx, id)
	if err != nil {
		return out, nil
	}
	st, err := sb.Status(ctx)
	if err != nil || st.Exit == nil {
		return out, nil
	}
	out.Report.Main = st.Exit
	main, err := sb.Process(ctx, atoll.MainProcess)
	if err != nil {
		return out, nil
	}
	all, err := atoll.Processes(ctx, sb)
	if err != nil {
		return nil, err
	}
	ps := all[slices.IndexFunc(all, func(p atoll.ProcessStatus) bool { return p.ID == atoll.MainProcess })]
	var stdout, stderr bytes.Buffer
	err = main.Attach(ctx, &atoll.Attachment{Stdout: &stdout, Stderr: &stderr, StdoutFrom: ps.Stdout.Oldest, StderrFrom: ps.Stderr.Oldest})
	out.Stdout, out.Stderr = guest.TailOf(ps.Stdout.Written, stdout.Bytes()), guest.TailOf(ps.Stderr.Written, stderr.Bytes())
	return out, err
}

func (b backend) List(ctx context.Context, op string) (list []*record, err error) {
	b.cloud.mu.Lock()
	var ids []string
	for id := range b.cloud.records {
		ids = append(ids, id)
	}
	b.cloud.mu.Unlock()
	for _, id := range ids {
		r, err := b.Find(ctx, op, id, remote.Latest)
		if err == nil {
			list = append(list, r)
		} else if atoll.KindOf(err) != atoll.ErrNotFound {
			return nil, err
		}
	}
	return list, ctx.Err()
}

func (b backend) Insert(ctx context.Context, r *record) error {
	text, err := json.Marshal(&r.Note)
	if err != nil {
		return err
	}
	b.cloud.mu.Lock()
	defer b.cloud.mu.Unlock()
	if b.cloud.records[r.ID] != nil {
		return remote.ErrDoneElsewhere
	}
	b.cloud.records[r.ID] = &object{text: text}
	return nil
}

func (b backend) Update(ctx context.Context, r *record, fn func(*remote.Note) error) error {
	for {
		now, o, err := b.read(r.ID)
		if err != nil {
			return err
		}
		if now.Note.CreationID != r.Note.CreationID {
			return atoll.E("write", r.ID, atoll.ErrNotFound, nil)
		}
		if err := fn(&now.Note); err != nil {
			return err
		}
		text, err := json.Marshal(&now.Note)
		if err != nil {
			return err
		}
		b.cloud.mu.Lock()
		if b.cloud.records[r.ID] != o {
			b.cloud.mu.Unlock()
			continue
		}
		written := &object{text: text, revision: o.revision + 1, out: o.out}
		if now.Note.Printed != nil {
			written.out, now.Note.Printed = now.Note.Printed, nil
		}
		b.cloud.records[r.ID] = written
		r.Note, r.Object = now.Note, written.revision
		r.FillStatus("cloud", b.Info().Caps)
		r.Ready = r.State == atoll.StateRunning
		b.cloud.announce(r.Status)
		b.cloud.mu.Unlock()
		return nil
	}
}

func (b backend) Delete(ctx context.Context, r *record) error {
	b.cloud.mu.Lock()
	delete(b.cloud.records, r.ID)
	b.cloud.announce(atoll.Status{ID: r.ID, State: atoll.StateRemoved})
	b.cloud.mu.Unlock()
	return nil
}

func (b backend) AwaitChange(ctx context.Context, _ *record) error {
	time.Sleep(20 * time.Millisecond)
	return ctx.Err()
}

func (b backend) ClaimName(ctx context.Context, r *record) (holder string, err error) {
	key := remote.VolumeKey{Project: r.Note.Spec.Project, Name: r.Note.Spec.Name}
	b.cloud.mu.Lock()
	defer b.cloud.mu.Unlock()
	if id := b.cloud.names[key]; id != "" && id != r.ID && b.cloud.records[id] != nil {
		return id, nil
	}
	b.cloud.names[key] = r.ID
	return "", nil
}

func (b backend) ReleaseName(ctx context.Context, r *record) error {
	key := remote.VolumeKey{Project: r.Note.Spec.Project, Name: r.Note.Spec.Name}
	b.cloud.mu.Lock()
	defer b.cloud.mu.Unlock()
	if b.cloud.names[key] == r.ID {
		delete(b.cloud.names, key)
	}
	return nil
}

func (b backend) Resolve(ctx context.Context, project, name string) (string, error) {
	b.cloud.mu.Lock()
	defer b.cloud.mu.Unlock()
	if id := b.cloud.names[remote.VolumeKey{Project: project, Name: name}]; id != "" {
		return id, nil
	}
	return "", atoll.E("get", name, atoll.ErrNotFound, nil)
}

// runSpec returns the spec of a run.
func runSpec(spec *atoll.Spec) *atoll.Spec {
	s := spec.Clone()
	s.Provider, s.Name, s.TTL, s.AutoRemove, s.NoStart = "", "", 0, false, false
	return s
}

func (b backend) Launch(ctx context.Context, r *record) error {
	if f := b.cloud.onLaunch; f != nil {
		if err := f(ctx); err != nil {
			return err
		}
	}
	run := atoll.NewID()
	err := b.makeRun(ctx, r.ID, run, runSpec(&r.Note.Spec))
	if err == nil {
		r.Note.Run, r.Note.Image = run, "mock:latest"
	}
	return err
}

// makeRun makes a sandbox of mock in place of what is left of the last one.
func (b backend) makeRun(ctx context.Context, id, run string, spec *atoll.Spec) error {
	if err := b.removeRun(ctx, id); err != nil {
		return err
	}
	return remote.RunToEnd(ctx, func(ctx context.Context) error {
		if _, err := b.cloud.runs.Create(ctx, spec); err != nil {
			return err
		}
		b.cloud.mu.Lock()
		b.cloud.current[id] = run
		b.cloud.mu.Unlock()
		return nil
	})
}

func (b backend) removeRun(ctx context.Context, id string) error {
	sb, err := b.cloud.runs.Get(ctx, id)
	if err == nil {
		err = sb.Remove(ctx)
	}
	if err != nil && atoll.KindOf(err) != atoll.ErrNotFound {
		return err
	}
	b.cloud.mu.Lock()
	delete(b.cloud.current, id)
	b.cloud.mu.Unlock()
	return nil
}

// A connection is a connection to a run.
type connection struct {
	sb     atoll.Sandbox
	closed chan struct{}
	once   sync.Once
}

func (c *connection) Sandbox() atoll.Sandbox { return c.sb }
func (c *connection) Close() error           { c.once.Do(func() { close(c.closed) }); return nil }
func (c *connection) Closed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

func (b backend) Connect(ctx context.Context, op string, r *record) (guestconn.Connection, error) {
	if f := b.cloud.onConnect; f != nil {
		if err := f(ctx); err != nil {
			return nil, err
		}
	}
	sb, err := b.runOf(ctx, r)
	if err != nil {
		return nil, atoll.E(op, r.ID, atoll.ErrUnavailable, err)
	}
	return &connection{sb: sb, closed: make(chan struct{})}, nil
}

func (b backend) AwaitEnd(ctx context.Context, op, id string) error {
	for range 50 {
		r, err := b.Find(ctx, op, id, remote.Latest)
		if err == nil {
			err = remote.RequireRunning(op, &r.Status)
		}
		if err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func (b backend) FinishRun(ctx context.Context, r *record, grace time.Duration, answered bool) (*guest.Printed, error) {
	return b.printed(ctx, r.ID)
}

func (b backend) RecordEnd(context.Context, *record) error { return nil } // Find does

func (b backend) RetireRun(ctx context.Context, r *record) error { return b.removeRun(ctx, r.ID) }
func (b backend) EndRun(ctx context.Context, r *record) error    { return b.removeRun(ctx, r.ID) }
func (b backend) DropRuns(ctx context.Context, r *record) error  { return b.removeRun(ctx, r.ID) }

func (b backend) EndStrays(ctx context.Context, r *record) error {
	b.cloud.mu.Lock()
	stray := b.cloud.current[r.ID] != r.Note.Run
	b.cloud.mu.Unlock()
	if !stray {
		return nil
	}
	return b.removeRun(ctx, r.ID)
}

func (b backend) Output(ctx context.Context, r *record) (*guest.Printed, error) {
	b.cloud.mu.Lock()
	defer b.cloud.mu.Unlock()
	if o := b.cloud.records[r.ID]; o != nil && o.out != nil {
		return o.out, nil
	}
	return guest.NothingPrinted(), nil
}

const caretakerRun = "caretaker"

func (b backend) ConnectCaretaker(ctx context.Context, op string, r *record) (guestconn.Connection, error) {
	spec := runSpec(remote.CaretakerSpec(&r.Note.Spec))
	spec.IdleStop, spec.NoStart = 0, true
	if err := b.makeRun(ctx, r.ID, caretakerRun, spec); err != nil {
		return nil, err
	}
	sb, err := b.cloud.runs.Get(ctx, r.ID)
	return &connection{sb: sb, closed: make(chan struct{})}, err
}

func (b backend) EndCaretaker(ctx context.Context, r *record) error {
	b.cloud.mu.Lock()
	there := b.cloud.current[r.ID] == caretakerRun
	b.cloud.mu.Unlock()
	if !there {
		return nil
	}
	return b.removeRun(ctx, r.ID)
}

func (b backend) Survey(ctx context.Context) (records []*record, due time.Time, err error) {
	records, err = b.List(ctx, "sweep")
	return records, due, err
}

func (b backend) Prepare(c *creation) []steps.Step {
	return []steps.Step{{Name: "volumes", Do: func(ctx context.Context) error { return b.createVolumes(ctx, c) }}}
}

// createVolumes makes mock create the volumes of a sandbox.
func (b backend) createVolumes(ctx context.Context, c *creation) error {
	before, err := atoll.Volumes(ctx, b.cloud.runs, "")
	if err != nil {
		return err
	}
	for _, v := range before {
		if v.Sandbox == c.Spec.ID && v.Project != c.Spec.Project {
			return atoll.Errorf("create", c.Spec.ID, atoll.ErrConflict, "the data volume of this id belongs to project %s: remove that, or use another id", v.Project)
		}
	}
	spec := runSpec(c.Spec)
	spec.NoStart = true
	err = remote.RunToEnd(ctx, func(ctx context.Context) error {
		return errors.Join(b.makeRun(ctx, c.Spec.ID, "", spec), b.removeRun(ctx, c.Spec.ID))
	})
	after, listErr := atoll.Volumes(context.WithoutCancel(ctx), b.cloud.runs, "")
	err = errors.Join(err, listErr)
	for _, v := range after {
		if !slices.ContainsFunc(before, func(o atoll.Volume) bool { return o.Project == v.Project && o.Name == v.Name }) {
			c.OnUndo(func(ctx context.Context) error {
				if err := atoll.RemoveVolume(ctx, b.cloud.runs, v.Project, v.Name); atoll.KindOf(err) != atoll.ErrNotExist {
					return err
				}
				return nil
			})
		}
	}
	return err
}

func (b backend) CheckDataVolume(ctx context.Context, r *record) error {
	all, err := b.ListVolumes(ctx)
	if err == nil && !slices.ContainsFunc(all, func(v atoll.Volume) bool { return v.Sandbox == r.ID }) {
		return remote.LostVolumeError(r.ID, "data-"+r.ID)
	}
	return err
}

func (b backend) ListVolumes(ctx context.Context) ([]atoll.Volume, error) {
	return atoll.Volumes(ctx, b.cloud.runs, "")
}

func (b backend) DeleteVolume(ctx context.Context, project, name string) error {
	used, err := b.UsedVolumes(ctx)
	if used[remote.VolumeKey{Project: project, Name: name}] {
		return remote.VolumeInUseError(name)
	}
	err = errors.Join(err, atoll.RemoveVolume(ctx, b.cloud.runs, project, name))
	if atoll.KindOf(err) == atoll.ErrNotExist {
		return remote.NoVolumeError(project, name)
	}
	return err
}

func (b backend) UsedVolumes(ctx context.Context) (map[remote.VolumeKey]bool, error) {
	records, err := b.List(ctx, "volumes")
	return remote.UsedVolumes(records), err
}

func (b backend) DropDataVolume(ctx context.Context, id string, r *record) error {
	if f := b.cloud.onDropVolume; f != nil {
		if err := f(ctx); err != nil {
			return err
		}
	}
	all, err := b.ListVolumes(ctx)
	for _, v := range all {
		if v.Sandbox == id {
			return atoll.RemoveVolume(ctx, b.cloud.runs, v.Project, v.Name)
		}
	}
	return err
}

func (b backend) DropVolumesOf(context.Context, *record) error { return nil }
