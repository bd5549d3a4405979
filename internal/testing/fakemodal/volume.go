package fakemodal

import (
	"context"
	"os"
	"path"
	"strings"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A volume is a directory that sandboxes mount.
type volume struct{ dir string }

// VolumeGetOrCreate returns the volume with a name, or creates one. Volumes without a name exist until
// the server is closed, even without heartbeats.
func (s *Server) VolumeGetOrCreate(_ context.Context, req *pb.VolumeGetOrCreateRequest) (*pb.VolumeGetOrCreateResponse, error) {
	if req.GetVersion() == pb.VolumeFsVersion_VOLUME_FS_VERSION_V2 {
		return nil, status.Error(codes.Unimplemented, "this test server has no volumes of version 2")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumes.getOrCreate(s.nextTime(), objectRequest{req.GetDeploymentName(), req.GetEnvironmentName(), req.GetObjectCreationType()},
		func(id string) (*volume, error) {
			v := &volume{s.filePath("volumes", id)}
			return v, os.Mkdir(v.dir, 0o755)
		})
	if err != nil {
		return nil, err
	}
	return pb.VolumeGetOrCreateResponse_builder{
		VolumeId: v.id, Version: pb.VolumeFsVersion_VOLUME_FS_VERSION_V1, Metadata: volumeMetadata(v),
	}.Build(), nil
}

func volumeMetadata(v *object[*volume]) *pb.VolumeMetadata {
	return pb.VolumeMetadata_builder{Version: pb.VolumeFsVersion_VOLUME_FS_VERSION_V1, Name: v.name, CreationInfo: v.creationInfo()}.Build()
}

// VolumeHeartbeat checks that the volume exists.
func (s *Server) VolumeHeartbeat(_ context.Context, req *pb.VolumeHeartbeatRequest) (*emptypb.Empty, error) {
	if _, err := s.findVolume(req.GetVolumeId()); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

func (s *Server) findVolume(id string) (*volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volumes.getObject(id)
	if err != nil {
		return nil, err
	}
	return v.value, nil
}

// VolumeList lists the named volumes, newest first.
func (s *Server) VolumeList(_ context.Context, req *pb.VolumeListRequest) (*pb.VolumeListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var items []*pb.VolumeListItem
	for _, v := range s.volumes.listPage(req.GetEnvironmentName(), req.GetPagination()) {
		items = append(items, pb.VolumeListItem_builder{Label: v.name, VolumeId: v.id, CreatedAt: unixSeconds(v.created), Metadata: volumeMetadata(v)}.Build())
	}
	return pb.VolumeListResponse_builder{Items: items, EnvironmentName: req.GetEnvironmentName()}.Build(), nil
}

// VolumeDelete deletes a volume with its content. A sandbox that has mounted it finds an empty
// directory.
func (s *Server) VolumeDelete(_ context.Context, req *pb.VolumeDeleteRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	v, err := s.volumes.removeObject(req.GetVolumeId())
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, fsutil.RemoveAll(v.value.dir)
}

// VolumeCommit does nothing, because writes of a sandbox are in the volume at once.
func (s *Server) VolumeCommit(_ context.Context, req *pb.VolumeCommitRequest) (*pb.VolumeCommitResponse, error) {
	_, err := s.findVolume(req.GetVolumeId())
	return &pb.VolumeCommitResponse{}, err
}

// VolumeReload does nothing, like VolumeCommit.
func (s *Server) VolumeReload(_ context.Context, req *pb.VolumeReloadRequest) (*emptypb.Empty, error) {
	_, err := s.findVolume(req.GetVolumeId())
	return &emptypb.Empty{}, err
}

// VolumePutFiles writes uploaded files into a volume.
func (s *Server) VolumePutFiles(_ context.Context, req *pb.VolumePutFilesRequest) (*emptypb.Empty, error) {
	v, err := s.findVolume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(v.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, f := range req.GetFiles() { // check all files before the first write
		if _, err := inVolume(f.GetFilename()); err != nil {
			return nil, err
		}
		if !s.hasFile(f.GetSha256Hex()) {
			return nil, status.Errorf(codes.NotFound, "File content %s of '%s' was not uploaded", f.GetSha256Hex(), f.GetFilename())
		}
	}
	for _, f := range req.GetFiles() {
		if err := s.putFile(root, f, !req.GetDisallowOverwriteExistingFiles()); err != nil {
			return nil, err
		}
	}
	return &emptypb.Empty{}, nil
}

// inVolume returns the name of a file relative to the volume.
func inVolume(name string) (string, error) {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" || strings.HasSuffix(name, "/") || strings.ContainsRune(name, 0) || clean != strings.TrimPrefix(path.Clean(name), "/") {
		return "", status.Errorf(codes.InvalidArgument, "Invalid path in volume: '%s'", name)
	}
	return clean, nil
}

// putFile writes one file atomically.
func (s *Server) putFile(root *os.Root, f *pb.MountFile, overwrite bool) error {
	name, err := inVolume(f.GetFilename())
	if err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if f.HasMode() {
		mode = os.FileMode(f.GetMode() & 0o777)
	}
	st, err := root.Lstat(name)
	switch {
	case err == nil && st.IsDir():
		return status.Errorf(codes.InvalidArgument, "'%s' is a directory in the volume", name)
	case err == nil && !overwrite:
		return status.Errorf(codes.AlreadyExists, "'%s' already exists in the volume", name)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return status.Errorf(codes.InvalidArgument, "'%s': %v", name, err)
	}
	from, err := os.Open(s.filePath("files", f.GetSha256Hex()))
	if err != nil {
		return err
	}
	defer from.Close()
	return writeInRoot(root, name, mode, from)
}
