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
type instance struct {
	id     string
	box    *sdk.Sandbox
	others bool // another program may have made it
}

// launchSandbox has a sandbox live, and returns when its guest answers, or its main process has
// come and gone. r tells of the life then. When it fails there is none.
func (p *Provider) launchSandbox(ctx context.Context, r *record) error {
	if err := p.dismissCaretaker(ctx, r); err != nil {
		return err
	}
	p.visits.Abandon(r.ID) // of its life before
	l, image, err := p.makeInstance(ctx, &r.note.Spec, p.names.sandboxName(r.ID), roleSandbox)
	if err != nil {
		return err
	}
	r.note.Life, r.note.Image = l.id, image.ref
	if err = p.awaitGuest(ctx, r.ID, l); err == nil {
		r.note.Ports, err = p.publishedPorts(ctx, &r.note.Spec, l)
	}
	if err != nil {
		p.visits.Abandon(r.ID)
		return errors.Join(err, runCleanup(func(ctx context.Context) error { return p.service.terminateInstance(ctx, l.id) }))
	}
	return nil
}

// makeInstance makes a sandbox of Modal's, and the image that it has. What this program has made for
// all before is made anew where somebody has deleted it.
func (p *Provider) makeInstance(ctx context.Context, spec *atoll.Spec, name, role string) (l *instance, image *builtImage, err error) {
	for try := range 2 {
		var params *sdk.SandboxCreateParams
		if params, err = p.createParams(ctx, spec, name); err == nil {
			image, err = p.sandboxImage(ctx, spec)
		}
		if err == nil {
			l, err = p.createInstance(ctx, spec, params, role, image)
		}
		if try > 0 || !isCode(err, codes.NotFound) {
			break
		}
		p.apps.forgetAll()
		p.images.forgetAll()
		p.guests.forgetAll()
	}
	return l, image, err
}

// createInstance makes a sandbox of Modal's. What is left of one with that name, whose maker has
// died before he could write it down, is ended; a caretaker is there for everybody.
func (p *Provider) createInstance(ctx context.Context, spec *atoll.Spec, params *sdk.SandboxCreateParams, role string, image *builtImage) (*instance, error) {
	app, err := p.findApp(ctx, spec.Project)
	if err != nil {
		return nil, err
	}
	client, err := p.service.sdkClient()
	if err != nil {
		return nil, err
	}
	var l *instance
	err = runToEnd(ctx, func(ctx context.Context) error {
		box, err := client.Sandboxes.Create(ctx, app, image.Image, params)
		others := false
		var taken sdk.AlreadyExistsError
		for try := 1; try < createTries && errors.As(err, &taken); try++ { // or it is this one, and the answer was lost
			if role == roleCaretaker {
				var gone sdk.NotFoundError
				box, err = client.Sandboxes.FromName(ctx, app.Name, params.Name, nil)
				if others = !errors.As(err, &gone); others {
					break
				}
			} else if err := p.service.terminateNamed(ctx, app.Name, params.Name); err != nil {
				return err
			}
			box, err = client.Sandboxes.Create(ctx, app, image.Image, params)
		}
		if err != nil {
			return err
		}
		l = &instance{id: box.SandboxID, box: box, others: others}
		if err := box.SetTags(ctx, p.instanceTags(spec, role)); err != nil && !others { // whose maker sets them, too
			return errors.Join(err, runCleanup(func(ctx context.Context) error { return p.service.terminateInstance(ctx, l.id) }))
		}
		return nil
	})
	if (errors.Is(err, context.DeadlineExceeded) || isCode(err, codes.DeadlineExceeded)) && ctx.Err() == nil {
		err = atoll.Errorf("start", spec.ID, atoll.ErrUnavailable, "Modal has not made it within %s: try again", cleanupTimeout)
	}
	return l, err
}

// createTries is how often a sandbox of Modal's is asked for whose name another one has.
const createTries = 3

// instanceTags are those of a sandbox: what is ours, and what users look for.
func (p *Provider) instanceTags(spec *atoll.Spec, role string) map[string]string {
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

// findApp is the one of a project's sandboxes, which is made when it is missing.
func (p *Provider) findApp(ctx context.Context, project string) (*sdk.App, error) {
	client, err := p.service.sdkClient()
	if err != nil {
		return nil, err
	}
	name := p.opts.appName(project)
	return p.apps.getOrFetch(ctx, name, func() (*sdk.App, error) {
		return client.Apps.FromName(ctx, name, &sdk.AppFromNameParams{CreateIfMissing: true})
	})
}

// awaitGuest returns when the guest of a life answers, or its main process has come and gone.
// Otherwise it says why not.
func (p *Provider) awaitGuest(ctx context.Context, id string, l *instance) error {
	patience, cancel := context.WithTimeout(ctx, p.opts.Patience)
	defer cancel()
	result, err := p.service.awaitPlaced(patience, l.id)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case patience.Err() != nil:
		return atoll.Errorf("start", id, atoll.ErrUnavailable, "Modal has not started it within %s", p.opts.Patience)
	case err != nil:
		return err
	case result != nil:
		return p.startFailure(ctx, id, l, result)
	}
	g, err := p.connectPlacedGuest(patience, id, l)
	if err == nil {
		p.visits.Settle(id, g) // also for those who have just been told that it does not run
		return nil
	}
	if ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if result, resultErr := p.service.awaitResult(patience, l.id, endTimeout); resultErr == nil && result != nil {
		return p.startFailure(ctx, id, l, result)
	}
	return unreachableError("start", id, "its guest", err)
}

// connectPlacedGuest connects to the guest of a life that has just been placed.
func (p *Provider) connectPlacedGuest(ctx context.Context, id string, l *instance) (guestconn.Inside, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return p.guestConnector(l.id, id)(ctx)
}

// startFailure is why a life has ended that never began; nil for one that did, and soon
// ended.
func (p *Provider) startFailure(ctx context.Context, id string, l *instance, result *pb.GenericResult) error {
	r := &record{note: note{Life: l.id}}
	r.ID = id
	out, err := p.readOutput(ctx, r)
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

// cleanupTimeout is how long what has to be done in any case may take.
const cleanupTimeout = 30 * time.Second

// runToEnd calls do with a ctx that lasts: the service may have done what its client has
// stopped waiting for, and then nobody would know of it.
func runToEnd(ctx context.Context, do func(context.Context) error) error {
	return steps.Settle(ctx, cleanupTimeout, do)
}

// runCleanup calls do, whatever has become of the caller.
func runCleanup(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	return do(ctx)
}

// listRunning are the lives that go on and have those tags, by their ids; if app is not "", those
// of the app with that id.
func (s *service) listRunning(ctx context.Context, app string, tags map[string]string) (map[string]*pb.SandboxInfo, error) {
	var want []*pb.SandboxTag
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		want = append(want, pb.SandboxTag_builder{TagName: key, TagValue: tags[key]}.Build())
	}
	all := map[string]*pb.SandboxInfo{}
	var before float64
	for {
		resp, err := s.pb.SandboxList(ctx, pb.SandboxListRequest_builder{
			AppId: app, EnvironmentName: s.environmentName(), BeforeTimestamp: before, Tags: want,
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

// awaitPlaced waits until a life has been placed somewhere; its result is there if it has ended
// before.
func (s *service) awaitPlaced(ctx context.Context, id string) (*pb.GenericResult, error) {
	for {
		wait := float32(longPollTimeout.Seconds())
		resp, err := s.pb.SandboxGetTaskId(ctx, pb.SandboxGetTaskIdRequest_builder{SandboxId: id, Timeout: &wait}.Build())
		if err != nil || resp.GetTaskResult() != nil {
			return resp.GetTaskResult(), err
		}
		if resp.GetTaskId() != "" {
			return s.awaitResult(ctx, id, 0)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// longPollTimeout is how long the service may take to answer what it has no answer to yet.
const longPollTimeout = 20 * time.Second

// awaitResult is how a life has ended; nil if it has not within that time.
func (s *service) awaitResult(ctx context.Context, id string, within time.Duration) (*pb.GenericResult, error) {
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

// terminateInstance ends a life, and returns when it has ended.
func (s *service) terminateInstance(ctx context.Context, id string) error {
	_, err := s.pb.SandboxTerminate(ctx, pb.SandboxTerminateRequest_builder{SandboxId: id}.Build())
	if isCode(err, codes.NotFound) {
		return nil
	}
	for err == nil {
		var result *pb.GenericResult
		if result, err = s.awaitResult(ctx, id, longPollTimeout); result != nil {
			return nil
		}
		err = errors.Join(err, ctx.Err())
	}
	return err
}

// terminateNamed ends the life that has a name, if there is one.
func (s *service) terminateNamed(ctx context.Context, app, name string) error {
	resp, err := s.pb.SandboxGetFromName(ctx, pb.SandboxGetFromNameRequest_builder{SandboxName: name, AppName: app, EnvironmentName: s.environmentName()}.Build())
	if isCode(err, codes.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.terminateInstance(ctx, resp.GetSandboxId())
}

// Stop implements atoll.Sandbox.
func (s *sandbox) Stop(ctx context.Context, grace time.Duration) error {
	if grace < 0 {
		grace = atoll.DefaultStopGrace
	}
	return s.withLockedRecord(ctx, "stop", func(r *record) error {
		if r.State != atoll.StateRunning {
			return nil
		}
		defer s.p.sweeper.Rouse()
		err := s.p.markStopping(ctx, r)
		if errors.Is(err, errDoneElsewhere) {
			return nil
		}
		if err == nil {
			err = s.p.stopProcesses(ctx, r, grace)
		}
		if err == nil {
			err = runToEnd(ctx, func(ctx context.Context) error { return s.p.service.terminateInstance(ctx, r.note.Life) })
		}
		if err != nil {
			return err
		}
		defer s.p.visits.Abandon(s.id)
		out, err := s.p.readOutput(ctx, r)
		if err != nil {
			return err // it has ended, and whoever asks for it next writes that down
		}
		err = runToEnd(ctx, func(ctx context.Context) error { return s.p.writeEnd(ctx, r, stoppedEnd(&r.Spec, out), out) })
		if errors.Is(err, errDoneElsewhere) {
			return nil
		}
		return err
	})
}

// markStopping writes down that a sandbox is being stopped, before anything of it ends: others
// may see that sooner than who stops it. Errors: errElse, and those of change.
func (p *Provider) markStopping(ctx context.Context, r *record) error {
	life := r.note.Life
	return p.updateRecord(ctx, r, func(n *note) error {
		if n.State != atoll.StateRunning || n.Life != life {
			return errDoneElsewhere
		}
		n.Stopping = true
		return nil
	})
}

// stopProcesses ends all processes of a sandbox, which have that long to end of their own, if its
// guest can be reached: else Modal ends them.
func (p *Provider) stopProcesses(ctx context.Context, r *record, grace time.Duration) error {
	reach, cancel := context.WithTimeout(ctx, reachTimeout)
	inside, err := p.reachGuest(reach, "stop", r.ID)
	cancel()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, grace+reachTimeout)
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

// reachTimeout is how long it may take to find out whether a guest answers.
const reachTimeout = 10 * time.Second

// Remove implements atoll.Sandbox.
func (s *sandbox) Remove(ctx context.Context, opts ...atoll.RemoveOption) error {
	if err := s.p.open(ctx, "remove"); err != nil {
		return err
	}
	release, err := s.p.locks.Lock(ctx, s.id)
	if err != nil {
		return err
	}
	return guestproc.Detached(ctx, &s.p.work, cleanupTimeout, func(ctx context.Context) error {
		defer release()
		return s.p.wrapError(ctx, "remove", s.id, s.p.removeSandbox(ctx, s.id, atoll.RemoveOpts(opts...)))
	})
}

// removeSandbox removes a sandbox whose lock the caller holds.
func (p *Provider) removeSandbox(ctx context.Context, id string, opts atoll.RemoveOptions) error {
	at, err := p.store.readLatest(ctx, subjectKey(kindSandbox, id))
	if err != nil {
		return err
	}
	if at != nil && !at.Deleted {
		if err := p.dropSandbox(ctx, p.decodeRecord(id, at)); err != nil {
			return err
		}
	}
	if !opts.Volumes {
		return nil
	}
	return p.dropDataVolume(ctx, id)
}

// dropSandbox deletes all of a sandbox but its volumes. The record goes last: as long as there is
// anything, the sandbox is in List, and can be removed.
func (p *Provider) dropSandbox(ctx context.Context, r *record) error {
	p.visits.Abandon(r.ID)
	if err := p.dismissCaretaker(ctx, r); err != nil {
		return err
	}
	if r.note.Life != "" { // it may be in an app of other settings
		if err := p.service.terminateInstance(ctx, r.note.Life); err != nil {
			return err
		}
	}
	if err := p.service.terminateNamed(ctx, p.opts.appName(r.note.Spec.Project), p.names.sandboxName(r.ID)); err != nil {
		return err
	}
	if err := p.dropOutput(ctx, r); err != nil {
		return err
	}
	if err := p.releaseName(ctx, r); err != nil {
		return err
	}
	for {
		_, err := p.store.writeNext(ctx, kindSandbox, r.ID, r.page, nil)
		if !errors.Is(err, errWrittenElsewhere) {
			if err == nil {
				p.events.publishChange(r.ID, nil)
			}
			return err
		}
		at, err := p.store.readLatest(ctx, subjectKey(kindSandbox, r.ID))
		if at == nil || at.Deleted || err != nil {
			return err
		}
		if now := p.decodeRecord(r.ID, at); now.note.Made != r.note.Made {
			return nil // another one, by now
		}
		r.page = at
	}
}
