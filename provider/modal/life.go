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

// An instance is a sandbox of Modal. It starts once and ends once; a sandbox of Atoll has one
// for each run.
type instance struct {
	id     string
	box    *sdk.Sandbox
	shared bool // another program may have created it
}

// launchSandbox creates an instance for a sandbox, and returns when its guest answers or its
// main process has run and ended. It sets the instance in r. If it fails, no instance is left.
func (p *Provider) launchSandbox(ctx context.Context, r *record) error {
	if err := p.dismissCaretaker(ctx, r); err != nil {
		return err
	}
	p.visits.Abandon(r.ID) // the connection to the last run
	l, image, err := p.makeInstance(ctx, &r.note.Spec, p.names.sandboxName(r.ID), roleSandbox)
	if err != nil {
		return err
	}
	r.note.Instance, r.note.Image = l.id, image.ref
	if err = p.awaitGuest(ctx, r.ID, l); err == nil {
		r.note.Ports, err = p.publishedPorts(ctx, &r.note.Spec, l)
	}
	if err != nil {
		p.visits.Abandon(r.ID)
		return errors.Join(err, runCleanup(func(ctx context.Context) error { return p.service.terminateInstance(ctx, l.id) }))
	}
	return nil
}

// makeInstance creates an instance and its image. If an app, an image or a volume that this
// program has cached was deleted, it creates that again.
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

// createInstance creates an instance. If the name is taken, it ends the other instance, whose
// creator died before it recorded it; or it returns a caretaker, which all programs share.
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
		l = &instance{id: box.SandboxID, box: box, shared: others}
		if err := box.SetTags(ctx, p.instanceTags(spec, role)); err != nil && !others { // the creator of the other one sets them, too
			return errors.Join(err, runCleanup(func(ctx context.Context) error { return p.service.terminateInstance(ctx, l.id) }))
		}
		return nil
	})
	if (errors.Is(err, context.DeadlineExceeded) || isCode(err, codes.DeadlineExceeded)) && ctx.Err() == nil {
		err = atoll.Errorf("start", spec.ID, atoll.ErrUnavailable, "Modal did not create it within %s: try again", cleanupTimeout)
	}
	return l, err
}

// createTries is the number of attempts to create an instance whose name is taken.
const createTries = 3

// instanceTags returns the tags of a sandbox's instance: Atoll's own, and the labels of the
// spec.
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

// findApp returns the app of a project, and creates it if it does not exist.
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

// awaitGuest returns nil when the guest of a new instance answers, or when the main process has
// run and ended. Otherwise it returns the reason.
func (p *Provider) awaitGuest(ctx context.Context, id string, l *instance) error {
	patience, cancel := context.WithTimeout(ctx, p.opts.Patience)
	defer cancel()
	result, err := p.service.awaitPlaced(patience, l.id)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case patience.Err() != nil:
		return atoll.Errorf("start", id, atoll.ErrUnavailable, "Modal did not start it within %s", p.opts.Patience)
	case err != nil:
		return err
	case result != nil:
		return p.startFailure(ctx, id, l, result)
	}
	g, err := p.connectPlacedGuest(patience, id, l)
	if err == nil {
		p.visits.Settle(id, g) // also for calls that have just failed because the sandbox did not run
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

// connectPlacedGuest connects to the guest of an instance that was just placed.
func (p *Provider) connectPlacedGuest(ctx context.Context, id string, l *instance) (guestconn.Inside, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return p.guestConnector(l.id, id)(ctx)
}

// startFailure returns why an ended instance never began to run; nil if it ran, even if only
// for a moment.
func (p *Provider) startFailure(ctx context.Context, id string, l *instance, result *pb.GenericResult) error {
	r := &record{note: note{Instance: l.id}}
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
	return atoll.Errorf("start", id, atoll.ErrUnavailable, "it ended before its guest started (%s): %s", result.GetStatus(), result.GetException())
}

// cleanupTimeout bounds work that must be done even if the caller has gone.
const cleanupTimeout = 30 * time.Second

// runToEnd calls do with a ctx that outlasts the caller's: the service may do what its client
// no longer waits for, and then nobody would know of it.
func runToEnd(ctx context.Context, do func(context.Context) error) error {
	return steps.Settle(ctx, cleanupTimeout, do)
}

// runCleanup calls do with a context of its own, even if the caller has gone.
func runCleanup(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	return do(ctx)
}

// listRunning returns the running instances with those tags, by id. If app is not "", it
// returns only those of the app with that id.
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

// awaitPlaced waits until an instance is placed on a machine. It returns a result if the
// instance has already ended.
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

// longPollTimeout is the longest time for which the service holds a call that waits.
const longPollTimeout = 20 * time.Second

// awaitResult returns how an instance ended; nil if it has not ended within that time.
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

// terminateInstance ends an instance, and returns when it has ended.
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

// terminateNamed ends the instance with a name, if there is one.
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
			err = runToEnd(ctx, func(ctx context.Context) error { return s.p.service.terminateInstance(ctx, r.note.Instance) })
		}
		if err != nil {
			return err
		}
		defer s.p.visits.Abandon(s.id)
		out, err := s.p.readOutput(ctx, r)
		if err != nil {
			return err // the sandbox has ended, and the next call that finds it records that
		}
		err = runToEnd(ctx, func(ctx context.Context) error { return s.p.writeEnd(ctx, r, stoppedEnd(&r.Spec, out), out) })
		if errors.Is(err, errDoneElsewhere) {
			return nil
		}
		return err
	})
}

// markStopping records that a sandbox is being stopped, before any process ends: another
// program may see the end sooner than the one that stops it. Errors: errDoneElsewhere, and
// those of updateRecord.
func (p *Provider) markStopping(ctx context.Context, r *record) error {
	instanceID := r.note.Instance
	return p.updateRecord(ctx, r, func(n *note) error {
		if n.State != atoll.StateRunning || n.Instance != instanceID {
			return errDoneElsewhere
		}
		n.Stopping = true
		return nil
	})
}

// stopProcesses ends all processes of a sandbox, after a grace period in which they may end by
// themselves. If its guest does not answer, Modal ends them.
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

// reachTimeout bounds the check whether a guest answers.
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

// dropSandbox deletes everything of a sandbox but its volumes. It deletes the record last: as
// long as anything is left, List has the sandbox, and Remove can remove it.
func (p *Provider) dropSandbox(ctx context.Context, r *record) error {
	p.visits.Abandon(r.ID)
	if err := p.dismissCaretaker(ctx, r); err != nil {
		return err
	}
	if r.note.Instance != "" { // it may be in an app of earlier settings
		if err := p.service.terminateInstance(ctx, r.note.Instance); err != nil {
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
		_, err := p.store.writeNext(ctx, kindSandbox, r.ID, r.revision, nil)
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
		if now := p.decodeRecord(r.ID, at); now.note.CreationID != r.note.CreationID {
			return nil // another sandbox has the id now
		}
		r.revision = at
	}
}
