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

// sandboxPage is how many sandboxes a list has at most.
const sandboxPage = 50

// A sandbox is one of the service. It waits until it has started, runs, and is there on
// when it has finished, with its logs.
type sandbox struct {
	s           *Server
	id, taskID  string
	name        string
	appID       string
	environment string
	def         *pb.Sandbox
	env         []string // of the secrets
	image       *image
	mounts      []atoll.Mount
	created     time.Time

	stdin          *input
	stdout, stderr *logs

	ctx     context.Context // ends when the sandbox is to
	cancel  context.CancelCauseFunc
	gone    context.Context // ends when nothing runs in it any longer
	goes    context.CancelFunc
	running chan struct{} // closed when it runs; not if it never does
	ended   chan struct{} // closed when it has finished
	use     *usage

	// Guarded by s.mu.
	tags              map[string]string
	box               atoll.Sandbox // once it runs
	tunnels           []*tunnel
	started, finished time.Time
	result            *pb.GenericResult // once it has finished
}

// SandboxCreate makes a sandbox, which is started when it has answered.
func (s *Server) SandboxCreate(_ context.Context, req *pb.SandboxCreateRequest) (*pb.SandboxCreateResponse, error) {
	def := req.GetDefinition()
	if err := validSandbox(def); err != nil {
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
	sb.gone, sb.goes = context.WithCancel(context.WithoutCancel(s.ctx))
	s.sandboxes[sb.id] = sb
	s.tasks.Go(sb.runLife)
	return pb.SandboxCreateResponse_builder{SandboxId: sb.id}.Build(), nil
}

// volumeMounts are those of a sandbox. Callers hold mu.
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

// findNamed finds the sandbox of an app that has a name and has not finished. Callers hold
// mu.
func (s *Server) findNamed(appID, name string) *sandbox {
	for _, sb := range s.sandboxes {
		if sb.appID == appID && sb.name == name && sb.result == nil {
			return sb
		}
	}
	return nil
}

// findSandbox finds one by its id.
func (s *Server) findSandbox(id string) (*sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.sandboxes[id]
	if sb == nil {
		return nil, status.Errorf(codes.NotFound, "Sandbox '%s' not found", id)
	}
	return sb, nil
}

// resultNow is the result of a sandbox that has finished, else nil.
func (sb *sandbox) resultNow() *pb.GenericResult {
	sb.s.mu.Lock()
	defer sb.s.mu.Unlock()
	return sb.result
}

// SandboxGetTaskId waits until a sandbox runs, or has finished.
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

// SandboxWait waits until a sandbox has finished, for so long.
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

// SandboxTerminate ends a sandbox, and does not wait for that: SandboxWait does.
func (s *Server) SandboxTerminate(_ context.Context, req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	sb.cancel(ending{pb.GenericResult_GENERIC_STATUS_TERMINATED, ""})
	return pb.SandboxTerminateResponse_builder{ExistingResult: sb.resultNow()}.Build(), nil
}

// Preempt ends a sandbox as the service does by itself when it loses what that runs on:
// with the status INTERNAL_FAILURE and such a text.
func (s *Server) Preempt(sandboxID string) error {
	return s.Kill(sandboxID, pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, "Sandbox was preempted: its worker is gone")
}

// Kill ends a sandbox with any status and text.
func (s *Server) Kill(sandboxID string, st pb.GenericResult_GenericStatus, exception string) error {
	sb, err := s.findSandbox(sandboxID)
	if err != nil {
		return err
	}
	sb.cancel(ending{st, exception})
	return nil
}

// SandboxGetFromName finds the sandbox with a name that has not finished.
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

// SandboxList lists sandboxes of an app, or of an environment, the newest first.
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

// matchesList reports whether a list is to have the sandbox. Callers hold mu.
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

// listInfo is what lists say. Callers hold mu.
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

// SandboxTagsSet replaces all tags of a sandbox that has not finished.
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

// SandboxTagsGet says what tags a sandbox has, or had when it finished.
func (s *Server) SandboxTagsGet(_ context.Context, req *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return pb.SandboxTagsGetResponse_builder{Tags: sb.tagList()}.Build(), nil
}
