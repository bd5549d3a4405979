package fakemodal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// An image is one that was built, or is being built.
type image struct {
	id     string
	recipe string
	log    *recording    // what its build says; closed at the end
	built  chan struct{} // closed at the end

	// Known at the end; of one that failed only the result.
	result *pb.GenericResult
	image  v1.Image
	config v1.Config
	work   string // file with what is in atoll.DefaultWorkdir, as a tar stream; "" if nothing is
}

// ImageGetOrCreate finds the image of a recipe, and begins to build it if there is
// none, or if that failed.
func (s *Server) ImageGetOrCreate(_ context.Context, req *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	app, err := s.apps.getObject(req.GetAppId())
	if err != nil {
		return nil, err
	}
	def := req.GetImage()
	if len(def.GetDockerfileCommands()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "Image must have dockerfile commands")
	}
	bases := map[string]*image{}
	for _, base := range def.GetBaseImages() {
		im, err := s.builtImage(base.GetImageId())
		if err != nil {
			return nil, err
		}
		bases[base.GetDockerTag()] = im
	}
	secrets, err := s.secretEnv(def.GetSecretIds())
	if err != nil {
		return nil, err
	}
	credentials, err := s.registryAuth(def.GetImageRegistryConfig())
	if err != nil {
		return nil, err
	}
	recipe, err := recipeOf(app.environment, def, secrets, credentials)
	if err != nil {
		return nil, err
	}
	im := s.recipes[recipe]
	if im == nil || req.GetForceBuild() || im.hasFailed() {
		im = &image{id: newID("im-"), recipe: recipe, log: newRecording(), built: make(chan struct{})}
		s.images[im.id] = im
		s.recipes[recipe] = im
		b := &builder{s: s, im: im, steps: parseDockerfile(def.GetDockerfileCommands()), bases: bases, secrets: secrets, auth: credentials}
		s.tasks.Go(b.runBuild)
	}
	return pb.ImageGetOrCreateResponse_builder{ImageId: im.id, Result: im.resultNow(), Metadata: im.imageMetadata()}.Build(), nil
}

// recipeOf tells recipes apart. Of secrets it is their content that counts: each
// client has ids of its own for the same.
func recipeOf(environment string, def *pb.Image, secrets []string, credentials any) (string, error) {
	plain := proto.CloneOf(def)
	plain.SetSecretIds(secrets)
	plain.SetRuntimeDebug(false)
	plain.ClearImageRegistryConfig()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(plain)
	if err != nil {
		return "", status.Error(codes.InvalidArgument, err.Error())
	}
	sum := sha256.Sum256(fmt.Appendf(b, "\x00%s\x00%v", environment, credentials))
	return hex.EncodeToString(sum[:]), nil
}

// hasEnded reports whether the build has ended.
func (im *image) hasEnded() bool {
	select {
	case <-im.built:
		return true
	default:
		return false
	}
}

func (im *image) resultNow() *pb.GenericResult {
	if !im.hasEnded() {
		return nil
	}
	return im.result
}

func (im *image) hasFailed() bool {
	return im.hasEnded() && im.result.GetStatus() != pb.GenericResult_GENERIC_STATUS_SUCCESS
}

// imageMetadata are those of an image that is built.
func (im *image) imageMetadata() *pb.ImageMetadata {
	if !im.hasEnded() || im.hasFailed() {
		return nil
	}
	m := &pb.ImageMetadata{}
	if im.config.WorkingDir != "" {
		m.SetWorkdir(im.config.WorkingDir)
	}
	return m
}

// anyImage finds an image by its id. Callers hold mu.
func (s *Server) anyImage(id string) (*image, error) {
	im := s.images[id]
	if im == nil {
		return nil, status.Errorf(codes.NotFound, "Image '%s' not found", id)
	}
	return im, nil
}

// builtImage finds one that something can be made from. Callers hold mu.
func (s *Server) builtImage(id string) (*image, error) {
	im, err := s.anyImage(id)
	switch {
	case err != nil:
		return nil, err
	case !im.hasEnded():
		return nil, status.Errorf(codes.FailedPrecondition, "Image '%s' is not built yet", id)
	case im.hasFailed():
		return nil, status.Errorf(codes.FailedPrecondition, "Image '%s' could not be built", id)
	}
	return im, nil
}

// ImageFromId says whether there is an image.
func (s *Server) ImageFromId(_ context.Context, req *pb.ImageFromIdRequest) (*pb.ImageFromIdResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	im, err := s.anyImage(req.GetImageId())
	if err != nil {
		return nil, err
	}
	return pb.ImageFromIdResponse_builder{ImageId: im.id, Metadata: im.imageMetadata()}.Build(), nil
}

// ImageDelete forgets an image. Sandboxes that were made from it go on.
func (s *Server) ImageDelete(_ context.Context, req *pb.ImageDeleteRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	im, err := s.anyImage(req.GetImageId())
	if err != nil {
		return nil, err
	}
	delete(s.images, im.id)
	if s.recipes[im.recipe] == im {
		delete(s.recipes, im.recipe)
	}
	return &emptypb.Empty{}, nil
}

// ImageJoinStreaming streams what a build says, and then its result.
func (s *Server) ImageJoinStreaming(req *pb.ImageJoinStreamingRequest, stream grpc.ServerStreamingServer[pb.ImageJoinStreamingResponse]) error {
	s.mu.Lock()
	im, err := s.anyImage(req.GetImageId())
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if !im.hasEnded() || req.GetIncludeLogsForFinished() {
		end, err := im.log.streamChunks(stream.Context(), entryIndex(req.GetLastEntryId()), req.GetTimeout(), func(batch []chunk) error {
			return stream.Send(pb.ImageJoinStreamingResponse_builder{TaskLogs: taskLogs(batch, pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT), EntryId: entryID(batch)}.Build())
		})
		if err != nil || !end {
			return err
		}
	}
	return stream.Send(pb.ImageJoinStreamingResponse_builder{Result: im.result, Metadata: im.imageMetadata(), Eof: true}.Build())
}

// entryIndex reads the id of an entry of logs, "12-0"; what is none stands for the
// beginning.
func entryIndex(id string) uint64 {
	n, _, _ := strings.Cut(id, "-")
	index, err := strconv.ParseUint(n, 10, 64)
	if err != nil {
		return 0
	}
	return index
}

// entryID is that of the last of a batch.
func entryID(batch []chunk) string {
	return strconv.FormatUint(batch[len(batch)-1].index, 10) + "-0"
}

// taskLogs are a batch as the protocol has logs.
func taskLogs(batch []chunk, fd pb.FileDescriptor) (logs []*pb.TaskLogs) {
	for _, c := range batch {
		logs = append(logs, pb.TaskLogs_builder{
			Data: strings.ToValidUTF8(string(c.data), "\uFFFD"), FileDescriptor: fd,
			Timestamp: unixSeconds(c.time), TimestampNs: uint64(c.time.UnixNano()), TaskState: pb.TaskState_TASK_STATE_UNSPECIFIED,
		}.Build())
	}
	return logs
}

// successResult is the result of what went well.
func successResult() *pb.GenericResult {
	return pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}.Build()
}

// failureResult is the result of what did not.
func failureResult(st pb.GenericResult_GenericStatus, err error) *pb.GenericResult {
	return pb.GenericResult_builder{Status: st, Exception: err.Error()}.Build()
}

// errClosed is why things end when the server does.
var errClosed = errors.New("the server is shutting down")
