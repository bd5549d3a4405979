package fakemodal

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/seed46cd37a8/atoll"
)

// sandboxPage is the largest number of sandboxes on one page of a list.
const sandboxPage = 50

// A sandbox is a sandbox of the service. It is waiting to start, running or finished; a finished one
// remains, with its logs.
type sandbox struct {
	s           *Server
	id, taskID  string
	name        string
	appID       string
	environment string
	def         *pb.Sandbox
	env         []string // variables of the secrets
	image       *image
	mounts      []atoll.Mount
	created     time.Time

	stdin          *input
	stdout, stderr *logs

	ctx         context.Context // canceled to end the sandbox
	cancel      context.CancelCauseFunc
	stoppedCtx  context.Context // ends when no process is left
	markStopped context.CancelFunc
	running     chan struct{} // closed when the sandbox runs; never closed if it fails to start
	ended       chan struct{} // closed when the sandbox has finished
	use         *usage

	// Guarded by s.mu.
	tags              map[string]string
	inner             atoll.Sandbox // of the backend; nil unless running
	tunnels           []*tunnel
	started, finished time.Time
	result            *pb.GenericResult // nil until finished
}

// SandboxCreate creates a sandbox, which starts in the background.
func (s *Server) SandboxCreate(_ context.Context, req *pb.SandboxCreateRequest) (*pb.SandboxCreateResponse, error) {
	def := req.GetDefinition()
	if err := checkSandbox(def); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	app, err := s.apps.getObject(req.GetAppId())
	if err != nil {
		return nil, err
	}
	im, err := s.builtImage(def.GetImageId())
	if err != nil {
		return nil, err
	}
	env, err := s.secretEnv(def.GetSecretIds())
	if err != nil {
		return nil, err
	}
	mounts, err := s.volumeMounts(def.GetVolumeMounts())
	if err != nil {
		return nil, err
	}
	if name := def.GetName(); name != "" && s.findNamed(app.id, name) != nil {
		return nil, status.Errorf(codes.AlreadyExists, "Sandbox with name '%s' already exists in app '%s'", name, cmp.Or(app.name, app.id))
	}
	sb := &sandbox{
		s: s, id: newID("sb-"), taskID: newID("ta-"), name: def.GetName(), appID: app.id, environment: app.environment,
		def: def, env: env, image: im, mounts: mounts, created: s.nextTime(), tags: map[string]string{},
		stdin: newInput(), stdout: newLogs(), stderr: newLogs(), running: make(chan struct{}), ended: make(chan struct{}), use: newUsage(),
	}
	sb.ctx, sb.cancel = context.WithCancelCause(s.ctx)
	sb.stoppedCtx, sb.markStopped = context.WithCancel(context.WithoutCancel(s.ctx))
	s.sandboxes[sb.id] = sb
	s.tasks.Go(sb.runSandbox)
	return pb.SandboxCreateResponse_builder{SandboxId: sb.id}.Build(), nil
}

// volumeMounts returns the volume mounts of a sandbox. The caller holds mu.
func (s *Server) volumeMounts(list []*pb.VolumeMount) (mounts []atoll.Mount, err error) {
	for _, m := range list {
		v, err := s.volumes.getObject(m.GetVolumeId())
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, atoll.Mount{Type: atoll.MountBind, Source: v.value.dir, Target: m.GetMountPath(), ReadOnly: m.GetReadOnly()})
	}
	return mounts, nil
}

// findNamed returns the unfinished sandbox of an app with a name, or nil. The caller holds mu.
func (s *Server) findNamed(appID, name string) *sandbox {
	for _, sb := range s.sandboxes {
		if sb.appID == appID && sb.name == name && sb.result == nil {
			return sb
		}
	}
	return nil
}

// findSandbox returns the sandbox with an id.
func (s *Server) findSandbox(id string) (*sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.sandboxes[id]
	if sb == nil {
		return nil, status.Errorf(codes.NotFound, "Sandbox '%s' not found", id)
	}
	return sb, nil
}

// resultNow returns the result of a finished sandbox, or nil.
func (sb *sandbox) resultNow() *pb.GenericResult {
	sb.s.mu.Lock()
	defer sb.s.mu.Unlock()
	return sb.result
}

// SandboxGetTaskId waits until a sandbox runs or has finished, up to the timeout.
func (s *Server) SandboxGetTaskId(ctx context.Context, req *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	var over <-chan time.Time
	if req.HasTimeout() {
		var stop func()
		over, stop = timeoutChan(req.GetTimeout())
		defer stop()
	}
	select {
	case <-sb.running:
	case <-sb.ended:
	case <-over:
		return &pb.SandboxGetTaskIdResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &sb.taskID, TaskResult: sb.resultNow()}.Build(), nil
}

// SandboxWait waits until a sandbox has finished, up to the timeout.
func (s *Server) SandboxWait(ctx context.Context, req *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	over, stop := timeoutChan(req.GetTimeout())
	defer stop()
	select {
	case <-sb.ended:
	case <-over:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return pb.SandboxWaitResponse_builder{Result: sb.resultNow()}.Build(), nil
}

// SandboxTerminate ends a sandbox without waiting for its end, as SandboxWait does.
func (s *Server) SandboxTerminate(_ context.Context, req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	sb.cancel(endCause{pb.GenericResult_GENERIC_STATUS_TERMINATED, ""})
	return pb.SandboxTerminateResponse_builder{ExistingResult: sb.resultNow()}.Build(), nil
}

// Preempt ends a sandbox as the service does if it loses the worker: with the status INTERNAL_FAILURE
// and a text about that.
func (s *Server) Preempt(sandboxID string) error {
	return s.Kill(sandboxID, pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, "Sandbox was preempted: its worker is gone")
}

// Kill ends a sandbox with any status and text.
func (s *Server) Kill(sandboxID string, st pb.GenericResult_GenericStatus, exception string) error {
	sb, err := s.findSandbox(sandboxID)
	if err != nil {
		return err
	}
	sb.cancel(endCause{st, exception})
	return nil
}

// SandboxGetFromName returns the unfinished sandbox with a name.
func (s *Server) SandboxGetFromName(_ context.Context, req *pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	app := s.apps.names[objectName{cmp.Or(req.GetEnvironmentName(), defaultEnvironment), req.GetAppName()}]
	if app == nil {
		return nil, status.Errorf(codes.NotFound, "App '%s' not found", req.GetAppName())
	}
	sb := s.findNamed(app.id, req.GetSandboxName())
	if sb == nil || sb.name == "" {
		return nil, status.Errorf(codes.NotFound, "Sandbox with name '%s' not found in app '%s'", req.GetSandboxName(), req.GetAppName())
	}
	return pb.SandboxGetFromNameResponse_builder{SandboxId: sb.id}.Build(), nil
}

// SandboxList lists the sandboxes of an app or of an environment, newest first.
func (s *Server) SandboxList(_ context.Context, req *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.GetAppId() != "" {
		if _, err := s.apps.getObject(req.GetAppId()); err != nil {
			return nil, err
		}
	}
	var list []*sandbox
	for _, sb := range s.sandboxes {
		if sb.matchesList(req) {
			list = append(list, sb)
		}
	}
	slices.SortFunc(list, func(a, b *sandbox) int { return b.created.Compare(a.created) })
	var infos []*pb.SandboxInfo
	for _, sb := range list[:min(sandboxPage, len(list))] {
		infos = append(infos, sb.listInfo())
	}
	return pb.SandboxListResponse_builder{Sandboxes: infos}.Build(), nil
}

// matchesList reports whether the requested list includes the sandbox. The caller holds mu.
func (sb *sandbox) matchesList(req *pb.SandboxListRequest) bool {
	if req.GetAppId() != "" && sb.appID != req.GetAppId() {
		return false
	}
	if req.GetAppId() == "" && sb.environment != cmp.Or(req.GetEnvironmentName(), defaultEnvironment) {
		return false
	}
	if sb.result != nil && !req.GetIncludeFinished() {
		return false
	}
	for _, tag := range req.GetTags() {
		if value, ok := sb.tags[tag.GetTagName()]; !ok || value != tag.GetTagValue() {
			return false
		}
	}
	return req.GetBeforeTimestamp() == 0 || unixSeconds(sb.created) < req.GetBeforeTimestamp()
}

// listInfo returns the sandbox's entry in lists. The caller holds mu.
func (sb *sandbox) listInfo() *pb.SandboxInfo {
	return pb.SandboxInfo_builder{
		Id: sb.id, CreatedAt: unixSeconds(sb.created), AppId: sb.appID, Tags: sb.tagList(), Name: sb.name,
		TaskInfo: pb.TaskInfo_builder{
			Id: sb.taskID, EnqueuedAt: unixSeconds(sb.created), StartedAt: unixSeconds(sb.started), FinishedAt: unixSeconds(sb.finished),
			Result: sb.result, SandboxId: sb.id,
		}.Build(),
	}.Build()
}

func (sb *sandbox) tagList() (tags []*pb.SandboxTag) {
	for _, name := range slices.Sorted(maps.Keys(sb.tags)) {
		tags = append(tags, pb.SandboxTag_builder{TagName: name, TagValue: sb.tags[name]}.Build())
	}
	return tags
}

// SandboxTagsSet replaces all tags of an unfinished sandbox.
func (s *Server) SandboxTagsSet(_ context.Context, req *pb.SandboxTagsSetRequest) (*emptypb.Empty, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	tags := map[string]string{}
	for _, tag := range req.GetTags() {
		if tag.GetTagName() == "" {
			return nil, status.Error(codes.InvalidArgument, "Tag names must not be empty")
		}
		tags[tag.GetTagName()] = tag.GetTagValue()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb.result != nil {
		return nil, status.Errorf(codes.InvalidArgument, "Sandbox '%s' has already finished", sb.id)
	}
	sb.tags = tags
	return &emptypb.Empty{}, nil
}

// SandboxTagsGet returns the tags of a sandbox, even after it has finished.
func (s *Server) SandboxTagsGet(_ context.Context, req *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return pb.SandboxTagsGetResponse_builder{Tags: sb.tagList()}.Build(), nil
}
