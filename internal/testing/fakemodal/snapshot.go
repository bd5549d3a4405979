package fakemodal

import (
	"context"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
)

// SandboxSnapshotFs makes an image of the root file system of a running sandbox, without the mounted
// directories. It continues if the caller goes away.
func (s *Server) SandboxSnapshotFs(ctx context.Context, req *pb.SandboxSnapshotFsRequest) (*pb.SandboxSnapshotFsResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	_, inner, err := s.findTask(sb.taskID)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "Sandbox '%s' is not running", sb.id)
	}
	ctx = context.WithoutCancel(ctx)
	if t := req.GetTimeout(); t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(float64(t)*float64(time.Second)))
		defer cancel()
	}
	im, err := s.takeSnapshot(ctx, sb, inner)
	if ctx.Err() == context.DeadlineExceeded {
		return pb.SandboxSnapshotFsResponse_builder{Result: failureResult(pb.GenericResult_GENERIC_STATUS_TIMEOUT, ctx.Err())}.Build(), nil
	}
	if err != nil {
		return pb.SandboxSnapshotFsResponse_builder{Result: failureResult(pb.GenericResult_GENERIC_STATUS_FAILURE, err)}.Build(), nil
	}
	return pb.SandboxSnapshotFsResponse_builder{ImageId: im.id, Result: successResult(), ImageMetadata: im.imageMetadata()}.Build(), nil
}

func (s *Server) takeSnapshot(ctx context.Context, sb *sandbox, inner atoll.Sandbox) (*image, error) {
	var mounted []string
	for _, m := range sb.mounts {
		mounted = append(mounted, m.Target)
	}
	shot, err := s.captureFiles(ctx, inner, mounted)
	if err != nil {
		return nil, err
	}
	im := &image{id: newID("im-"), log: newRecording(), built: make(chan struct{}), result: successResult(), config: *sb.image.config.DeepCopy(), work: shot.work}
	if im.image, err = mutate.Config(shot.image, im.config); err != nil {
		return nil, err
	}
	if err := s.registry.pushImage(ctx, im.id, im.image); err != nil {
		return nil, err
	}
	im.log.closeRecording()
	close(im.built)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images[im.id] = im
	return im, nil
}

// SandboxGetResourceUsage returns the resources that a sandbox has used since its start.
func (s *Server) SandboxGetResourceUsage(ctx context.Context, req *pb.SandboxGetResourceUsageRequest) (*pb.SandboxGetResourceUsageResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	_, inner, err := s.findTask(sb.taskID)
	if err != nil {
		return nil, err
	}
	u, err := atoll.UsageOf(ctx, inner)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "Sandbox '%s': %v", sb.id, err)
	}
	s.mu.Lock()
	ran := time.Since(sb.started)
	s.mu.Unlock()
	gib := float64(u.Memory) / (1 << 30)
	return pb.SandboxGetResourceUsageResponse_builder{CpuCoreNanosecs: uint64(u.CPU), MemGibNanosecs: uint64(gib * float64(ran))}.Build(), nil
}
