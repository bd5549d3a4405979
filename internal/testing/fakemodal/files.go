package fakemodal

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
)

const (
	maxFileRead  = 100 << 20 // bytes of one read
	maxFileWrite = 16 << 20  // bytes of one write
	maxFileSize  = 1 << 30   // bytes of a file written through a handle
)

// A fileExec is a finished operation on files. ContainerFilesystemExecGetOutput returns its result.
type fileExec struct {
	sb     *sandbox
	output []byte
	err    *pb.SystemErrorMessage
}

// A fileError is the reason why an operation failed, as an error number of the system.
type fileError struct {
	code pb.SystemErrorCode
	text string
}

func (e fileError) Error() string { return e.text }

var (
	errNoFile  = fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_NOENT, "No such file or directory"}
	errIsDir   = fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_ISDIR, "Is a directory"}
	errNotDir  = fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_NOTDIR, "Not a directory"}
	errExists  = fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_EXIST, "File exists"}
	errInvalid = fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_INVAL, "Invalid argument"}
	errTooBig  = fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_FBIG, "File too large"}
	errAccess  = fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_ACCES, "Permission denied"}
	errFull    = fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_NOSPC, "No space left on device"}
	errBadFile = fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_INVAL, "Bad file descriptor"}
)

// toFileError converts an error of the backend's files.
func toFileError(err error) fileError {
	if e, ok := err.(fileError); ok {
		return e
	}
	switch atoll.KindOf(err) {
	case atoll.ErrNotExist:
		return errNoFile
	case atoll.ErrDenied:
		return errAccess
	case atoll.ErrAlreadyExists:
		return errExists
	case atoll.ErrExhausted:
		return errFull
	case atoll.ErrInvalid:
		return fileError{errInvalid.code, errInvalid.text + ": " + err.Error()}
	}
	return fileError{pb.SystemErrorCode_SYSTEM_ERROR_CODE_IO, err.Error()}
}

// ContainerFilesystemExec runs an operation on files. ContainerFilesystemExecGetOutput returns its
// result.
func (s *Server) ContainerFilesystemExec(ctx context.Context, req *pb.ContainerFilesystemExecRequest) (*pb.ContainerFilesystemExecResponse, error) {
	sb, inner, err := s.findTask(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if len(req.GetFileWriteRequest().GetData()) > maxFileWrite {
		return nil, status.Errorf(codes.InvalidArgument, "write request exceeds %d bytes", maxFileWrite)
	}
	resp := pb.ContainerFilesystemExecResponse_builder{ExecId: newID("fe-")}.Build()
	output, err := s.fileOperation(ctx, &fileTask{sb, atoll.Files(inner)}, req, resp)
	switch kind := atoll.KindOf(err); {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case status.Code(err) == codes.Unimplemented:
		return nil, err
	case kind == atoll.ErrStopped || kind == atoll.ErrNotFound:
		return nil, status.Errorf(codes.FailedPrecondition, "Container '%s' is not running", req.GetTaskId())
	}
	done := &fileExec{sb: sb, output: output}
	if err != nil {
		e := toFileError(err)
		done.err = pb.SystemErrorMessage_builder{ErrorCode: e.code, ErrorMessage: e.text}.Build()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fileExecs[resp.GetExecId()] = done
	return resp, nil
}

// A fileTask is the sandbox that an operation runs in, with its files.
type fileTask struct {
	sb *sandbox
	fs atoll.FS
}

// fileOperation runs one operation and returns its output.
func (s *Server) fileOperation(ctx context.Context, in *fileTask, req *pb.ContainerFilesystemExecRequest, resp *pb.ContainerFilesystemExecResponse) ([]byte, error) {
	switch req.WhichFileExecRequestOneof() {
	case pb.ContainerFilesystemExecRequest_FileOpenRequest_case:
		fd := newID("fd-")
		resp.SetFileDescriptor(fd) // even if the file cannot be opened
		h, err := in.openFile(ctx, req.GetFileOpenRequest().GetPath(), req.GetFileOpenRequest().GetMode())
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.handles[fd] = h
		return nil, nil
	case pb.ContainerFilesystemExecRequest_FileLsRequest_case:
		return in.listDir(ctx, req.GetFileLsRequest().GetPath())
	case pb.ContainerFilesystemExecRequest_FileMkdirRequest_case:
		return nil, in.makeDir(ctx, req.GetFileMkdirRequest())
	case pb.ContainerFilesystemExecRequest_FileRmRequest_case:
		return nil, in.fs.Remove(ctx, req.GetFileRmRequest().GetPath(), req.GetFileRmRequest().GetRecursive())
	}
	return s.handleOperation(ctx, in, req)
}

// handleOperation runs one operation on an open file.
func (s *Server) handleOperation(ctx context.Context, in *fileTask, req *pb.ContainerFilesystemExecRequest) ([]byte, error) {
	switch req.WhichFileExecRequestOneof() {
	case pb.ContainerFilesystemExecRequest_FileReadRequest_case:
		r := req.GetFileReadRequest()
		n := int64(-1)
		if r.HasN() {
			n = int64(r.GetN())
		}
		return s.withHandle(in, r.GetFileDescriptor(), func(h *handle) ([]byte, error) { return h.readBytes(ctx, in.fs, n) })
	case pb.ContainerFilesystemExecRequest_FileReadLineRequest_case:
		return s.withHandle(in, req.GetFileReadLineRequest().GetFileDescriptor(), func(h *handle) ([]byte, error) { return h.readLine(ctx, in.fs) })
	case pb.ContainerFilesystemExecRequest_FileWriteRequest_case:
		r := req.GetFileWriteRequest()
		return s.withHandle(in, r.GetFileDescriptor(), func(h *handle) ([]byte, error) { return nil, h.writeBytes(r.GetData()) })
	case pb.ContainerFilesystemExecRequest_FileSeekRequest_case:
		r := req.GetFileSeekRequest()
		return s.withHandle(in, r.GetFileDescriptor(), func(h *handle) ([]byte, error) {
			return nil, h.seekTo(ctx, in.fs, int64(r.GetOffset()), r.GetWhence())
		})
	case pb.ContainerFilesystemExecRequest_FileFlushRequest_case:
		return s.withHandle(in, req.GetFileFlushRequest().GetFileDescriptor(), func(h *handle) ([]byte, error) { return nil, h.flushData(ctx, in.fs) })
	case pb.ContainerFilesystemExecRequest_FileCloseRequest_case:
		fd := req.GetFileCloseRequest().GetFileDescriptor()
		return s.withHandle(in, fd, func(h *handle) ([]byte, error) {
			s.mu.Lock()
			delete(s.handles, fd)
			s.mu.Unlock()
			return nil, h.flushData(ctx, in.fs)
		})
	}
	return nil, status.Errorf(codes.Unimplemented, "this test server does not support the operation %v", req.WhichFileExecRequestOneof())
}

// withHandle calls do with an open file, which is locked meanwhile.
func (s *Server) withHandle(in *fileTask, fd string, do func(*handle) ([]byte, error)) ([]byte, error) {
	s.mu.Lock()
	h := s.handles[fd]
	s.mu.Unlock()
	if h == nil || h.sb != in.sb {
		return nil, errBadFile
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return do(h)
}

// listDir returns the names in a directory, as JSON.
func (in *fileTask) listDir(ctx context.Context, dir string) ([]byte, error) {
	info, err := in.fs.Stat(ctx, dir)
	if err == nil && info.Type != atoll.TypeDirectory && info.Type != atoll.TypeSymlink {
		err = errNotDir
	}
	if err != nil {
		return nil, err
	}
	infos, err := in.fs.List(ctx, dir, false)
	if err != nil {
		return nil, err
	}
	paths := make([]string, len(infos))
	for i, info := range infos {
		paths[i] = info.Name
	}
	return json.Marshal(map[string][]string{"paths": paths})
}

func (in *fileTask) makeDir(ctx context.Context, req *pb.ContainerFileMkdirRequest) error {
	if !req.GetMakeParents() {
		if _, err := in.fs.Stat(ctx, req.GetPath()); err == nil {
			return errExists
		}
		if err := in.checkParent(ctx, req.GetPath()); err != nil {
			return err
		}
	}
	return in.fs.Mkdir(ctx, req.GetPath(), 0o755)
}

// ContainerFilesystemExecGetOutput streams the output and error of an operation on files.
func (s *Server) ContainerFilesystemExecGetOutput(req *pb.ContainerFilesystemExecGetOutputRequest, stream grpc.ServerStreamingServer[pb.FilesystemRuntimeOutputBatch]) error {
	s.mu.Lock()
	e := s.fileExecs[req.GetExecId()]
	s.mu.Unlock()
	if e == nil {
		return status.Errorf(codes.NotFound, "Exec '%s' not found", req.GetExecId())
	}
	index := uint64(0)
	send := func(b pb.FilesystemRuntimeOutputBatch_builder) error {
		index++
		b.BatchIndex = index
		return stream.Send(b.Build())
	}
	for part := range slices.Chunk(e.output, batchLimit) {
		if err := send(pb.FilesystemRuntimeOutputBatch_builder{Output: [][]byte{bytes.Clone(part)}}); err != nil {
			return err
		}
	}
	if e.err != nil {
		if err := send(pb.FilesystemRuntimeOutputBatch_builder{Error: e.err}); err != nil {
			return err
		}
	}
	if err := send(pb.FilesystemRuntimeOutputBatch_builder{Eof: true}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.fileExecs, req.GetExecId())
	return nil
}
