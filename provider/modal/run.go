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
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/internal/guestconn"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// An instance is a sandbox of Modal. It starts once and ends once; a sandbox of Atoll has one
// for each run.
type instance struct {
	id     string
	box    *sdk.Sandbox
	shared bool // another program may have created it
}

// Launch implements remote.Runs. It creates an instance.
func (b backend) Launch(ctx context.Context, r *record) error {
	p := b.Provider
	l, image, err := p.makeInstance(ctx, &r.Note.Spec, p.names.sandboxName(r.ID), roleSandbox)
	if err != nil {
		return err
	}
	r.Note.Run, r.Note.Image = l.id, image.ref
	if err = p.awaitGuest(ctx, r.ID, l); err == nil {
		r.Note.Ports, err = p.publishedPorts(ctx, &r.Note.Spec, l)
	}
	if err != nil {
		p.engine.Guests.Cancel(r.ID)
		return errors.Join(err, remote.RunCleanup(func(ctx context.Context) error { return b.EndRun(ctx, r) }))
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
	err = remote.RunToEnd(ctx, func(ctx context.Context) error {
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
			return errors.Join(err, remote.RunCleanup(func(ctx context.Context) error { return p.service.terminateInstance(ctx, l.id) }))
		}
		return nil
	})
	if (errors.Is(err, context.DeadlineExceeded) || isCode(err, codes.DeadlineExceeded)) && ctx.Err() == nil {
		err = atoll.Errorf("start", spec.ID, atoll.ErrUnavailable, "Modal did not create it within %s: try again", remote.CleanupTimeout)
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
		p.engine.Guests.Replace(id, g) // also for calls that have just failed because the sandbox did not run
		return nil
	}
	if ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if result, resultErr := p.service.awaitResult(patience, l.id, p.opts.endTimeout); resultErr == nil && result != nil {
		return p.startFailure(ctx, id, l, result)
	}
	return unreachableError("start", id, "its guest", err)
}

// connectPlacedGuest connects to the guest of an instance that was just placed.
func (p *Provider) connectPlacedGuest(ctx context.Context, id string, l *instance) (guestconn.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, remote.ConnectTimeout)
	defer cancel()
	return p.guestConnector(l.id, id)(ctx)
}

// startFailure returns why an ended instance never began to run; nil if it ran, even if only
// for a moment.
func (p *Provider) startFailure(ctx context.Context, id string, l *instance, result *pb.GenericResult) error {
	r := &record{Note: note{Run: l.id}}
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

// reachTimeout bounds the check whether a guest can be reached.
const reachTimeout = 10 * time.Second

// FinishRun implements remote.Runs. A guest that has answered writes the rest of the output, how
// the main process ended, and ends by itself. Modal ends it otherwise.
func (b backend) FinishRun(ctx context.Context, r *record, _ time.Duration, answered bool) (*guest.Printed, error) {
	err := remote.RunToEnd(ctx, func(ctx context.Context) error {
		if answered && len(r.Note.Spec.Cmd) > 0 {
			if result, err := b.service.awaitResult(ctx, r.Note.Run, b.opts.endTimeout); err != nil || result != nil {
				return err
			}
		}
		return b.EndRun(ctx, r)
	})
	if err != nil {
		return nil, err
	}
	return b.readOutput(ctx, r)
}

// RecordEnd implements remote.Runs. Find has recorded the end.
func (b backend) RecordEnd(context.Context, *record) error { return nil }

// RetireRun implements remote.Runs. Modal has nothing of an ended instance that costs anything.
func (b backend) RetireRun(context.Context, *record) error { return nil }

// EndRun implements remote.Runs.
func (b backend) EndRun(ctx context.Context, r *record) error {
	return b.service.terminateInstance(ctx, r.Note.Run)
}

// EndStrays implements remote.Runs.
func (b backend) EndStrays(ctx context.Context, r *record) error {
	return b.service.terminateNamed(ctx, b.opts.appName(r.Note.Spec.Project), b.names.sandboxName(r.ID))
}

// DropRuns implements remote.Runs.
func (b backend) DropRuns(ctx context.Context, r *record) error {
	if r.Note.Run != "" { // it may be in an app of earlier settings
		if err := b.EndRun(ctx, r); err != nil {
			return err
		}
	}
	return b.EndStrays(ctx, r)
}
