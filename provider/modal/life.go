package modal

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/guestproc"
	"github.com/seed46cd37a8/atoll/provider/internal/steps"
)

// A life is a sandbox of Modal's: it begins once and ends once.
type life struct {
	id     string
	box    *sdk.Sandbox
	others bool // another program may have made it
}

// begin has a sandbox live, and returns when its guest answers, or its main process has
// come and gone. r tells of the life then. When it fails there is none.
func (p *Provider) begin(ctx context.Context, r *record) error {
	if err := p.dismiss(ctx, r); err != nil {
		return err
	}
	p.visits.Abandon(r.ID) // of its life before
	l, image, err := p.bear(ctx, &r.note.Spec, p.names.sandbox(r.ID), roleSandbox)
	if err != nil {
		return err
	}
	r.note.Life, r.note.Image = l.id, image.ref
	if err = p.await(ctx, r.ID, l); err == nil {
		r.note.Ports, err = p.tunnels(ctx, &r.note.Spec, l)
	}
	if err != nil {
		p.visits.Abandon(r.ID)
		return errors.Join(err, settledLast(func(ctx context.Context) error { return p.service.finish(ctx, l.id) }))
	}
	return nil
}

// bear makes a sandbox of Modal's, and the image that it has. What this program has made for
// all before is made anew where somebody has deleted it.
func (p *Provider) bear(ctx context.Context, spec *atoll.Spec, name, role string) (l *life, image *madeImage, err error) {
	for try := range 2 {
		var params *sdk.SandboxCreateParams
		if params, err = p.params(ctx, spec, name); err == nil {
			image, err = p.imageOf(ctx, spec)
		}
		if err == nil {
			l, err = p.place(ctx, spec, params, role, image)
		}
		if try > 0 || !isCode(err, codes.NotFound) {
			break
		}
		p.apps.forget()
		p.images.forget()
		p.guests.forget()
	}
	return l, image, err
}

// place makes a sandbox of Modal's. What is left of one with that name, whose maker has
// died before he could write it down, is ended; a caretaker is there for everybody.
func (p *Provider) place(ctx context.Context, spec *atoll.Spec, params *sdk.SandboxCreateParams, role string, image *madeImage) (*life, error) {
	app, err := p.app(ctx, spec.Project)
	if err != nil {
		return nil, err
	}
	client, err := p.service.client()
	if err != nil {
		return nil, err
	}
	var l *life
	err = settled(ctx, func(ctx context.Context) error {
		box, err := client.Sandboxes.Create(ctx, app, image.Image, params)
		others := false
		var taken sdk.AlreadyExistsError
		for try := 1; try < placeTries && errors.As(err, &taken); try++ { // or it is this one, and the answer was lost
			if role == roleCaretaker {
				var gone sdk.NotFoundError
				box, err = client.Sandboxes.FromName(ctx, app.Name, params.Name, nil)
				if others = !errors.As(err, &gone); others {
					break
				}
			} else if err := p.service.evict(ctx, app.Name, params.Name); err != nil {
				return err
			}
			box, err = client.Sandboxes.Create(ctx, app, image.Image, params)
		}
		if err != nil {
			return err
		}
		l = &life{id: box.SandboxID, box: box, others: others}
		if err := box.SetTags(ctx, p.tags(spec, role)); err != nil && !others { // whose maker sets them, too
			return errors.Join(err, settledLast(func(ctx context.Context) error { return p.service.finish(ctx, l.id) }))
		}
		return nil
	})
	if (errors.Is(err, context.DeadlineExceeded) || isCode(err, codes.DeadlineExceeded)) && ctx.Err() == nil {
		err = atoll.Errorf("start", spec.ID, atoll.ErrUnavailable, "Modal has not made it within %s: try again", lastTime)
	}
	return l, err
}

// placeTries is how often a sandbox of Modal's is asked for whose name another one has.
const placeTries = 3

// tags are those of a sandbox: what is ours, and what users look for.
func (p *Provider) tags(spec *atoll.Spec, role string) map[string]string {
	tags := maps.Clone(spec.Labels)
	if tags == nil {
		tags = map[string]string{}
	}
	maps.Copy(tags, map[string]string{tagOwner: p.opts.Prefix, tagRole: role, tagSession: spec.ID, tagProject: spec.Project})
	if spec.Name != "" {
		tags[tagName] = spec.Name
	}
	return tags
}

// app is the one of a project's sandboxes, which is made when it is missing.
func (p *Provider) app(ctx context.Context, project string) (*sdk.App, error) {
	client, err := p.service.client()
	if err != nil {
		return nil, err
	}
	name := p.opts.app(project)
	return p.apps.get(ctx, name, func() (*sdk.App, error) {
		return client.Apps.FromName(ctx, name, &sdk.AppFromNameParams{CreateIfMissing: true})
	})
}

// await returns when the guest of a life answers, or its main process has come and gone.
// Otherwise it says why not.
func (p *Provider) await(ctx context.Context, id string, l *life) error {
	patience, cancel := context.WithTimeout(ctx, p.opts.Patience)
	defer cancel()
	result, err := p.service.placed(patience, l.id)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case patience.Err() != nil:
		return atoll.Errorf("start", id, atoll.ErrUnavailable, "Modal has not started it within %s", p.opts.Patience)
	case err != nil:
		return err
	case result != nil:
		return p.stillborn(ctx, id, l, result)
	}
	g, err := p.greet(patience, id, l)
	if err == nil {
		p.visits.Settle(id, g) // also for those who have just been told that it does not run
		return nil
	}
	if ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if result, resultErr := p.service.result(patience, l.id, lastMoment); resultErr == nil && result != nil {
		return p.stillborn(ctx, id, l, result)
	}
	return unreached("start", id, "its guest", err)
}

// greet connects to the guest of a life that has just been placed.
func (p *Provider) greet(ctx context.Context, id string, l *life) (guestconn.Inside, error) {
	ctx, cancel := context.WithTimeout(ctx, visitTime)
	defer cancel()
	return p.connector(l.id, id)(ctx)
}

// stillborn is why a life has ended that never began; nil for one that did, and soon
// ended.
func (p *Provider) stillborn(ctx context.Context, id string, l *life, result *pb.GenericResult) error {
	r := &record{note: note{Life: l.id}}
	r.ID = id
	out, err := p.printed(ctx, r)
	if err != nil {
		return err
	}
	switch {
	case out.Report.Kind != "" || out.Report.Message != "":
		return atoll.Errorf("start", id, out.Report.Kind, "%s", out.Report.Message)
	case out.Report.Main != nil || out.Report.Begins || out.Report.Reason != "":
		return nil
	case result.GetStatus() == pb.GenericResult_GENERIC_STATUS_INIT_FAILURE:
		return atoll.Errorf("start", id, atoll.ErrUnavailable, "Modal cannot start it: %s", result.GetException())
	}
	return atoll.Errorf("start", id, atoll.ErrUnavailable, "it has ended before its guest was there (%s): %s", result.GetStatus(), result.GetException())
}

// lastTime is how long what has to be done in any case may take.
const lastTime = 30 * time.Second

// settled calls do with a ctx that lasts: the service may have done what its client has
// stopped waiting for, and then nobody would know of it.
func settled(ctx context.Context, do func(context.Context) error) error {
	return steps.Settle(ctx, lastTime, do)
}

// settledLast calls do, whatever has become of the caller.
func settledLast(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), lastTime)
	defer cancel()
	return do(ctx)
}

// alive are the lives that go on and have those tags, by their ids; if app is not "", those
// of the app with that id.
func (s *service) alive(ctx context.Context, app string, tags map[string]string) (map[string]*pb.SandboxInfo, error) {
	var want []*pb.SandboxTag
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		want = append(want, pb.SandboxTag_builder{TagName: key, TagValue: tags[key]}.Build())
	}
	all := map[string]*pb.SandboxInfo{}
	var before float64
	for {
		resp, err := s.pb.SandboxList(ctx, pb.SandboxListRequest_builder{
			AppId: app, EnvironmentName: s.environment(), BeforeTimestamp: before, Tags: want,
		}.Build())
		if err != nil {
			return nil, err
		}
		page := resp.GetSandboxes()
		if len(page) == 0 {
			return all, nil
		}
		for _, info := range page {
			all[info.GetId()] = info
		}
		before = page[len(page)-1].GetCreatedAt()
	}
}

// placed waits until a life has been placed somewhere; its result is there if it has ended
// before.
func (s *service) placed(ctx context.Context, id string) (*pb.GenericResult, error) {
	for {
		wait := float32(pollTime.Seconds())
		resp, err := s.pb.SandboxGetTaskId(ctx, pb.SandboxGetTaskIdRequest_builder{SandboxId: id, Timeout: &wait}.Build())
		if err != nil || resp.GetTaskResult() != nil {
			return resp.GetTaskResult(), err
		}
		if resp.GetTaskId() != "" {
			return s.result(ctx, id, 0)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// pollTime is how long the service may take to answer what it has no answer to yet.
const pollTime = 20 * time.Second

// result is how a life has ended; nil if it has not within that time.
func (s *service) result(ctx context.Context, id string, within time.Duration) (*pb.GenericResult, error) {
	resp, err := s.pb.SandboxWait(ctx, pb.SandboxWaitRequest_builder{SandboxId: id, Timeout: float32(within.Seconds())}.Build())
	if isCode(err, codes.NotFound) {
		return pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_TERMINATED, Exception: "Modal knows nothing of it any more: start it again"}.Build(), nil
	}
	if err != nil {
		return nil, err
	}
	if result := resp.GetResult(); result.GetStatus() != pb.GenericResult_GENERIC_STATUS_UNSPECIFIED {
		return result, nil
	}
	return nil, nil
}

// finish ends a life, and returns when it has ended.
func (s *service) finish(ctx context.Context, id string) error {
	_, err := s.pb.SandboxTerminate(ctx, pb.SandboxTerminateRequest_builder{SandboxId: id}.Build())
	if isCode(err, codes.NotFound) {
		return nil
	}
	for err == nil {
		var result *pb.GenericResult
		if result, err = s.result(ctx, id, pollTime); result != nil {
			return nil
		}
		err = errors.Join(err, ctx.Err())
	}
	return err
}

// evict ends the life that has a name, if there is one.
func (s *service) evict(ctx context.Context, app, name string) error {
	resp, err := s.pb.SandboxGetFromName(ctx, pb.SandboxGetFromNameRequest_builder{SandboxName: name, AppName: app, EnvironmentName: s.environment()}.Build())
	if isCode(err, codes.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.finish(ctx, resp.GetSandboxId())
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	return s.locked(ctx, "stop", func(r *record) error {
		if r.State != atoll.StateRunning {
			return nil
		}
		defer s.p.sweeper.Rouse()
		err := s.p.stopping(ctx, r)
		if errors.Is(err, errElse) {
			return nil
		}
		if err == nil {
			err = s.p.quiet(ctx, r, grace)
		}
		if err == nil {
			err = settled(ctx, func(ctx context.Context) error { return s.p.service.finish(ctx, r.note.Life) })
		}
		if err != nil {
			return err
		}
		defer s.p.visits.Abandon(s.id)
		out, err := s.p.printed(ctx, r)
		if err != nil {
			return err // it has ended, and whoever asks for it next writes that down
		}
		err = settled(ctx, func(ctx context.Context) error { return s.p.rest(ctx, r, stopped(&r.Spec, out), out) })
		if errors.Is(err, errElse) {
			return nil
		}
		return err
	})
}

// stopping writes down that a sandbox is being stopped, before anything of it ends: others
// may see that sooner than who stops it. Errors: errElse, and those of change.
func (p *Provider) stopping(ctx context.Context, r *record) error {
	life := r.note.Life
	return p.change(ctx, r, func(n *note) error {
		if n.State != atoll.StateRunning || n.Life != life {
			return errElse
		}
		n.Stopping = true
		return nil
	})
}

// quiet ends all processes of a sandbox, which have that long to end of their own, if its
// guest can be reached: else Modal ends them.
func (p *Provider) quiet(ctx context.Context, r *record, grace time.Duration) error {
	reach, cancel := context.WithTimeout(ctx, reachTime)
	inside, err := p.inside(reach, "stop", r.ID)
	cancel()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, grace+reachTime)
		defer cancel()
		err = inside.Stop(ctx, grace)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && atoll.KindOf(err) != atoll.ErrStopped {
		p.opts.Log.Warn("stop: its guest does not answer", "sandbox", r.ID, "err", err)
	}
	return nil
}

// reachTime is how long it may take to find out whether a guest answers.
const reachTime = 10 * time.Second

// Remove implements atoll.Sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := s.p.open(ctx, "remove"); err != nil {
		return err
	}
	release, err := s.p.locks.Lock(ctx, s.id)
	if err != nil {
		return err
	}
	return guestproc.Detached(ctx, &s.p.work, lastTime, func(ctx context.Context) error {
		defer release()
		return s.p.failed(ctx, "remove", s.id, s.p.remove(ctx, s.id, atoll.RemoveOpts(opts...)))
	})
}

// remove removes a sandbox whose lock the caller holds.
func (p *Provider) remove(ctx context.Context, id string, opts atoll.RemoveOptions) error {
	at, err := p.book.turn(ctx, subject(kindSandbox, id))
	if err != nil {
		return err
	}
	if at != nil && !at.Over {
		if err := p.drop(ctx, p.decode(id, at)); err != nil {
			return err
		}
	}
	if !opts.Volumes {
		return nil
	}
	return p.dropData(ctx, id)
}

// drop deletes all of a sandbox but its volumes. The record goes last: as long as there is
// anything, the sandbox is in List, and can be removed.
func (p *Provider) drop(ctx context.Context, r *record) error {
	p.visits.Abandon(r.ID)
	if err := p.dismiss(ctx, r); err != nil {
		return err
	}
	if r.note.Life != "" { // it may be in an app of other settings
		if err := p.service.finish(ctx, r.note.Life); err != nil {
			return err
		}
	}
	if err := p.service.evict(ctx, p.opts.app(r.note.Spec.Project), p.names.sandbox(r.ID)); err != nil {
		return err
	}
	if err := p.dropPrinted(ctx, r); err != nil {
		return err
	}
	if err := p.unname(ctx, r); err != nil {
		return err
	}
	for {
		_, err := p.book.write(ctx, kindSandbox, r.ID, r.page, nil)
		if !errors.Is(err, errTurned) {
			if err == nil {
				p.events.changed(r.ID, nil)
			}
			return err
		}
		at, err := p.book.turn(ctx, subject(kindSandbox, r.ID))
		if at == nil || at.Over || err != nil {
			return err
		}
		if now := p.decode(r.ID, at); now.note.Made != r.note.Made {
			return nil // another one, by now
		}
		r.page = at
	}
}
