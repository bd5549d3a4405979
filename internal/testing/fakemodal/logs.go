package fakemodal

import (
	"context"
	"sync"
	"unicode/utf8"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// logs record one output of a sandbox as text. The bytes of an incomplete character wait for the rest.
type logs struct {
	*recording
	mu   sync.Mutex
	part []byte
}

func newLogs() *logs { return &logs{recording: newRecording()} }

// Write adds text. It never fails.
func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, p...)
	whole := len(l.part) - partialLen(l.part)
	_, err := l.recording.Write(l.part[:whole])
	l.part = append(l.part[:0], l.part[whole:]...)
	return len(p), err
}

// partialLen returns the number of bytes at the end of b that begin an incomplete character.
func partialLen(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		tail := b[len(b)-n:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

func (l *logs) closeLogs() {
	l.mu.Lock()
	_, _ = l.recording.Write(l.part) // never fails
	l.part = nil
	l.mu.Unlock()
	l.recording.closeRecording()
}

// SandboxGetLogs streams one output of the main process until its end, or until the timeout.
func (s *Server) SandboxGetLogs(req *pb.SandboxGetLogsRequest, stream grpc.ServerStreamingServer[pb.TaskLogsBatch]) error {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return err
	}
	var l *logs
	switch req.GetFileDescriptor() {
	case pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT:
		l = sb.stdout
	case pb.FileDescriptor_FILE_DESCRIPTOR_STDERR:
		l = sb.stderr
	default:
		return status.Errorf(codes.InvalidArgument, "Invalid file descriptor: %s", req.GetFileDescriptor())
	}
	end, err := l.streamChunks(stream.Context(), entryIndex(req.GetLastEntryId()), req.GetTimeout(), func(batch []chunk) error {
		return stream.Send(pb.TaskLogsBatch_builder{TaskId: sb.taskID, Items: taskLogs(batch, req.GetFileDescriptor()), EntryId: entryID(batch)}.Build())
	})
	if err != nil || !end {
		return err
	}
	last := chunk{index: l.lastIndex() + 1}
	return stream.Send(pb.TaskLogsBatch_builder{TaskId: sb.taskID, EntryId: entryID([]chunk{last}), Eof: true}.Build())
}

// SandboxStdinWrite sends input to the main process.
func (s *Server) SandboxStdinWrite(ctx context.Context, req *pb.SandboxStdinWriteRequest) (*pb.SandboxStdinWriteResponse, error) {
	sb, err := s.findSandbox(req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if req.GetIndex() == 0 {
		return nil, status.Error(codes.InvalidArgument, "index must be positive")
	}
	sb.use.markUse()
	if err := sb.stdin.putMessage(ctx, uint64(req.GetIndex()), message{req.GetInput(), req.GetEof()}); err != nil {
		return nil, putError(err, "Sandbox", sb.id)
	}
	return &pb.SandboxStdinWriteResponse{}, nil
}

// putError returns the status for an error of putMessage.
func putError(err error, what, id string) error {
	if err == errInputClosed {
		return status.Errorf(codes.FailedPrecondition, "%s '%s' has already finished", what, id)
	}
	return err
}
