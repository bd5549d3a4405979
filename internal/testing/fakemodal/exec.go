package fakemodal

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/seed46cd37a8/atoll"
)

const (
	// exitNotStarted is the exit code of a command that could not be started, as in the
	// service's runtime.
	exitNotStarted = 128
	// exitKilled is the exit code of a command that was killed, or reached its time limit.
	exitKilled = 137
)

// An execution is a command in a sandbox.
type execution struct {
	id             string
	sb             *sandbox
	stdin          *input
	stdout, stderr *recording
	done           chan struct{} // closed when the command has ended
	code           int32         // valid after done
}

// findTask returns the running sandbox with a task id, and its sandbox of the backend.
func (s *Server) findTask(taskID string) (*sandbox, atoll.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sb := range s.sandboxes {
		switch {
		case sb.taskID != taskID:
		case sb.inner == nil || sb.ctx.Err() != nil:
			return nil, nil, status.Errorf(codes.FailedPrecondition, "Container '%s' is not running", taskID)
		default:
			return sb, sb.inner, nil
		}
	}
	return nil, nil, status.Errorf(codes.NotFound, "Container '%s' not found", taskID)
}

// ContainerExec starts a command.
func (s *Server) ContainerExec(ctx context.Context, req *pb.ContainerExecRequest) (*pb.ContainerExecResponse, error) {
	sb, inner, err := s.findTask(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if len(req.GetCommand()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "command must not be empty")
	}
	e := &execution{id: newID("ex-"), sb: sb, stdin: newInput(), stdout: newRecording(), stderr: newRecording(), done: make(chan struct{})}
	cmd, err := s.backendCommand(e, req)
	if err != nil {
		return nil, err
	}
	free := sb.use.beginUse()
	proc, err := inner.Exec(ctx, cmd)
	switch kind := atoll.KindOf(err); {
	case err == nil:
	case ctx.Err() != nil:
		free()
		return nil, ctx.Err()
	case kind == atoll.ErrStopped || kind == atoll.ErrNotFound:
		free()
		return nil, status.Errorf(codes.FailedPrecondition, "Container '%s' is not running", req.GetTaskId())
	}
	s.mu.Lock()
	s.execs[e.id] = e
	s.mu.Unlock()
	s.tasks.Go(func() {
		defer free()
		e.finishExec(e.exitOf(proc, err))
	})
	return pb.ContainerExecResponse_builder{ExecId: e.id}.Build(), nil
}

// backendCommand returns the command that the backend runs.
func (s *Server) backendCommand(e *execution, req *pb.ContainerExecRequest) (*atoll.Command, error) {
	s.mu.Lock()
	env, err := s.secretEnv(req.GetSecretIds())
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	cmd := &atoll.Command{
		Args: req.GetCommand(), Dir: e.sb.workDir(), User: e.sb.processUser(), Timeout: atoll.Duration(req.GetTimeoutSecs()) * atoll.Duration(time.Second),
		Stdin: e.stdin, Stdout: e.stdout, Stderr: e.stderr,
	}
	setTerminal(cmd, req.GetPtyInfo())
	cmd.Env = append(cmd.Env, env...)
	if dir := req.GetWorkdir(); dir != "" {
		if !strings.HasPrefix(dir, "/") {
			return nil, status.Errorf(codes.InvalidArgument, "workdir must be an absolute path, got: %s", dir)
		}
		cmd.Dir = dir
	}
	return cmd, nil
}

// exitOf waits for a process and returns its exit code. err is the error of starting it.
func (e *execution) exitOf(proc atoll.Process, err error) int32 {
	if err != nil {
		fmt.Fprintf(e.stderr, "error starting the command: %v\n", err)
		return exitNotStarted
	}
	exit, err := proc.Wait(e.sb.stoppedCtx)
	if err != nil || exit.TimedOut {
		return exitKilled
	}
	return int32(exit.Code)
}

// finishExec records the exit code and closes the streams.
func (e *execution) finishExec(code int32) {
	e.code = code
	close(e.done)
	e.stdin.closeInput()
	e.stdout.closeRecording()
	e.stderr.closeRecording()
}

// muteExecs unblocks the commands of a sandbox that write to slow readers. The caller holds mu.
func (s *Server) muteExecs(sb *sandbox) {
	for _, e := range s.execs {
		if e.sb == sb {
			e.stdout.muteWriters()
			e.stderr.muteWriters()
			e.stdin.closeInput()
		}
	}
}

// deleteExecs deletes the commands and open files of a finished sandbox. Callers that already read
// output can read to its end. The caller holds mu.
func (s *Server) deleteExecs(sb *sandbox) {
	for id, e := range s.execs {
		if e.sb == sb {
			delete(s.execs, id)
		}
	}
	for id, h := range s.handles {
		if h.sb == sb {
			delete(s.handles, id)
		}
	}
	for id, f := range s.fileExecs {
		if f.sb == sb {
			delete(s.fileExecs, id)
		}
	}
}

func (s *Server) findExec(id string) (*execution, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.execs[id]
	if e == nil {
		return nil, status.Errorf(codes.NotFound, "Exec '%s' not found", id)
	}
	return e, nil
}

// ContainerExecPutInput sends input to a command.
func (s *Server) ContainerExecPutInput(ctx context.Context, req *pb.ContainerExecPutInputRequest) (*emptypb.Empty, error) {
	e, err := s.findExec(req.GetExecId())
	if err != nil {
		return nil, err
	}
	in := req.GetInput()
	if in.GetMessageIndex() == 0 {
		return nil, status.Error(codes.InvalidArgument, "message_index must be positive")
	}
	if err := e.stdin.putMessage(ctx, in.GetMessageIndex(), message{in.GetMessage(), in.GetEof()}); err != nil {
		return nil, putError(err, "Exec", e.id)
	}
	return &emptypb.Empty{}, nil
}

// ContainerExecGetOutput streams one output of a command, and its exit code if the command ends within
// the timeout.
func (s *Server) ContainerExecGetOutput(req *pb.ContainerExecGetOutputRequest, stream grpc.ServerStreamingServer[pb.RuntimeOutputBatch]) error {
	e, err := s.findExec(req.GetExecId())
	if err != nil {
		return err
	}
	fd := req.GetFileDescriptor()
	out := e.stdout
	switch fd {
	case pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT:
	case pb.FileDescriptor_FILE_DESCRIPTOR_STDERR:
		out = e.stderr
	default:
		return status.Errorf(codes.InvalidArgument, "Invalid file descriptor: %s", fd)
	}
	end, err := out.streamChunks(stream.Context(), req.GetLastBatchIndex(), req.GetTimeout(), func(batch []chunk) error {
		return stream.Send(pb.RuntimeOutputBatch_builder{Items: outputMessages(batch, fd, req.GetGetRawBytes()), BatchIndex: batch[len(batch)-1].index}.Build())
	})
	if err != nil || !end {
		return err
	}
	return stream.Send(pb.RuntimeOutputBatch_builder{BatchIndex: out.lastIndex() + 1, ExitCode: &e.code}.Build())
}

func outputMessages(batch []chunk, fd pb.FileDescriptor, raw bool) (list []*pb.RuntimeOutputMessage) {
	for _, c := range batch {
		m := &pb.RuntimeOutputMessage{}
		m.SetFileDescriptor(fd)
		if raw {
			m.SetMessageBytes(c.data)
		} else {
			m.SetMessage(strings.ToValidUTF8(string(c.data), "\uFFFD"))
		}
		list = append(list, m)
	}
	return list
}

// ContainerExecWait waits for a command to end, up to the timeout.
func (s *Server) ContainerExecWait(ctx context.Context, req *pb.ContainerExecWaitRequest) (*pb.ContainerExecWaitResponse, error) {
	e, err := s.findExec(req.GetExecId())
	if err != nil {
		return nil, err
	}
	over, stop := timeoutChan(req.GetTimeout())
	defer stop()
	select {
	case <-e.done:
		return pb.ContainerExecWaitResponse_builder{ExitCode: &e.code, Completed: true}.Build(), nil
	case <-over:
		return &pb.ContainerExecWaitResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
