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

// An image is an image that has been built, or is being built.
type image struct {
	id     string
	recipe string
	log    *recording    // output of the build; closed at its end
	built  chan struct{} // closed at the end of the build

	// Valid after built. A failed build sets only result.
	result *pb.GenericResult
	image  v1.Image
	config v1.Config
	work   string // tar file with the content of atoll.DefaultWorkdir; "" if that is empty
}

// ImageGetOrCreate returns the image of a recipe. It starts a build if there is none, or if the last
// build failed.
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

// recipeOf returns a hash of a recipe. It includes the content of secrets instead of their ids, which
// differ between clients.
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

// imageMetadata returns the metadata of a built image, or nil.
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

// anyImage returns the image with an id. The caller holds mu.
func (s *Server) anyImage(id string) (*image, error) {
	im := s.images[id]
	if im == nil {
		return nil, status.Errorf(codes.NotFound, "Image '%s' not found", id)
	}
	return im, nil
}

// builtImage returns the image with an id if its build succeeded. The caller holds mu.
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

// ImageFromId returns an image if it exists.
func (s *Server) ImageFromId(_ context.Context, req *pb.ImageFromIdRequest) (*pb.ImageFromIdResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	im, err := s.anyImage(req.GetImageId())
	if err != nil {
		return nil, err
	}
	return pb.ImageFromIdResponse_builder{ImageId: im.id, Metadata: im.imageMetadata()}.Build(), nil
}

// ImageDelete deletes an image. It does not affect sandboxes of the image.
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

// ImageJoinStreaming streams the output of a build, and then its result.
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

// entryIndex parses the id of a log entry, such as "12-0". It returns 0, the beginning, for other
// text.
func entryIndex(id string) uint64 {
	n, _, _ := strings.Cut(id, "-")
	index, err := strconv.ParseUint(n, 10, 64)
	if err != nil {
		return 0
	}
	return index
}

// entryID returns the id of the last entry of a batch.
func entryID(batch []chunk) string {
	return strconv.FormatUint(batch[len(batch)-1].index, 10) + "-0"
}

// taskLogs converts a batch to the form of the protocol.
func taskLogs(batch []chunk, fd pb.FileDescriptor) (logs []*pb.TaskLogs) {
	for _, c := range batch {
		logs = append(logs, pb.TaskLogs_builder{
			Data: strings.ToValidUTF8(string(c.data), "\uFFFD"), FileDescriptor: fd,
			Timestamp: unixSeconds(c.time), TimestampNs: uint64(c.time.UnixNano()), TaskState: pb.TaskState_TASK_STATE_UNSPECIFIED,
		}.Build())
	}
	return logs
}

// successResult returns a result without an error.
func successResult() *pb.GenericResult {
	return pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}.Build()
}

// failureResult returns a result with a status and an error.
func failureResult(st pb.GenericResult_GenericStatus, err error) *pb.GenericResult {
	return pb.GenericResult_builder{Status: st, Exception: err.Error()}.Build()
}

// errClosed is the error of builds and sandboxes that end because the server closes.
var errClosed = errors.New("the server is shutting down")
