package fakemodal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
)

// registryAuth returns the registry credentials that a recipe names. The caller holds mu.
func (s *Server) registryAuth(config *pb.ImageRegistryConfig) (authn.AuthConfig, error) {
	if config.GetSecretId() == "" {
		return authn.AuthConfig{}, nil
	}
	secret, err := s.secrets.getObject(config.GetSecretId())
	if err != nil {
		return authn.AuthConfig{}, err
	}
	switch config.GetRegistryAuthType() {
	case pb.RegistryAuthType_REGISTRY_AUTH_TYPE_STATIC_CREDS:
		user, password := secret.value["REGISTRY_USERNAME"], secret.value["REGISTRY_PASSWORD"]
		if user == "" || password == "" {
			return authn.AuthConfig{}, status.Error(codes.InvalidArgument, "Secret must have REGISTRY_USERNAME and REGISTRY_PASSWORD")
		}
		return authn.AuthConfig{Username: user, Password: password}, nil
	case pb.RegistryAuthType_REGISTRY_AUTH_TYPE_GCP:
		return authn.AuthConfig{Username: "_json_key", Password: secret.value["SERVICE_ACCOUNT_JSON"]}, nil
	}
	return authn.AuthConfig{}, status.Errorf(codes.Unimplemented, "this test server does not support credentials of type %s", config.GetRegistryAuthType())
}

// A builder builds one image.
type builder struct {
	s       *Server
	im      *image
	steps   []instruction
	bases   map[string]*image // by their name in FROM
	secrets []string          // "KEY=value", the environment of RUN
	auth    authn.AuthConfig

	image  v1.Image // the image so far, without config
	config v1.Config
	work   string
}

// runBuild builds the image and records the result.
func (b *builder) runBuild() {
	err := b.buildImage(b.s.ctx)
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	switch {
	case b.s.ctx.Err() != nil:
		b.im.result = failureResult(pb.GenericResult_GENERIC_STATUS_TERMINATED, errClosed)
	case err != nil:
		b.im.result = failureResult(pb.GenericResult_GENERIC_STATUS_FAILURE, err)
	default:
		b.im.result, b.im.image, b.im.config, b.im.work = successResult(), b.image, b.config, b.work
	}
	b.im.log.closeRecording()
	close(b.im.built)
}

func (b *builder) buildImage(ctx context.Context) error {
	for i, in := range b.steps {
		fmt.Fprintf(b.im.log, "=> Step %d: %s %s\n", i, in.verb, in.args)
		if err := b.runInstruction(ctx, in); err != nil {
			return err
		}
	}
	if b.image == nil {
		return errors.New("no FROM instruction")
	}
	return b.saveImage(ctx, b.im.id)
}

// runInstruction applies one instruction of the Dockerfile.
func (b *builder) runInstruction(ctx context.Context, in instruction) error {
	switch {
	case in.verb == "FROM":
		return b.useBase(ctx, in.args)
	case b.image == nil:
		return fmt.Errorf("no build stage in current context: %s comes before FROM", in.verb)
	case in.verb == "RUN":
		return b.runCommand(ctx, in.args)
	}
	known, err := applyConfig(&b.config, in)
	if err == nil && !known {
		err = fmt.Errorf("this test server does not support %s", in.verb)
	}
	return err
}

// useBase starts from another image.
func (b *builder) useBase(ctx context.Context, args string) error {
	ref, _, _ := strings.Cut(args, " ")
	if base := b.bases[ref]; base != nil {
		b.image, b.config, b.work = base.image, *base.config.DeepCopy(), base.work
		return nil
	}
	img, err := b.s.registry.pullImage(ctx, ref, authn.FromConfig(b.auth))
	if err != nil {
		return fmt.Errorf("image pull failed for %s: %w", ref, err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return fmt.Errorf("image pull failed for %s: %w", ref, err)
	}
	b.image, b.config = img, *file.Config.DeepCopy()
	return nil
}

// saveImage pushes the image so far to the registry, as id.
func (b *builder) saveImage(ctx context.Context, id string) (err error) {
	if b.image, err = mutate.Config(b.image, b.config); err != nil {
		return err
	}
	return b.s.registry.pushImage(ctx, id, b.image)
}

// runCommand runs a command in a sandbox of the backend and captures its file system as the new image.
func (b *builder) runCommand(ctx context.Context, args string) error {
	id := newID("stage-")
	if err := b.saveImage(ctx, id); err != nil {
		return err
	}
	spec := &atoll.Spec{
		Image: b.s.registry.imageRef(id), User: "0:0", IdleStop: atoll.Never,
		Network: atoll.Network{Mode: atoll.NetworkOn}, Labels: map[string]string{"image": b.im.id},
	}
	inner, err := b.s.createInner(ctx, spec, nil, b.work)
	if err != nil {
		return err
	}
	defer b.s.removeInner(inner)
	dir := b.config.WorkingDir
	if dir != "" && dir != "/" {
		if err := atoll.Files(inner).Mkdir(ctx, dir, 0o755); err != nil {
			return err
		}
	}
	err = atoll.Run(ctx, inner, &atoll.Command{
		Args: commandLine(args), Env: b.secrets, Dir: cmp.Or(dir, "/"), User: b.config.User, Stdout: b.im.log, Stderr: b.im.log,
	})
	if exit, ok := errors.AsType[*atoll.ExitError](err); ok {
		return fmt.Errorf("RUN %s: %w\n%s", args, exit, b.im.log.lastText())
	}
	if err != nil {
		return err
	}
	return b.captureInner(ctx, inner)
}

// captureInner replaces the image by the file system of a sandbox.
func (b *builder) captureInner(ctx context.Context, inner atoll.Sandbox) error {
	shot, err := b.s.captureFiles(ctx, inner, nil)
	if err != nil {
		return err
	}
	b.image, b.work = shot.image, shot.work
	return nil
}

// lastText returns the end of the recorded text, for the error of a failed build.
func (r *recording) lastText() string {
	const most = 4 << 10
	var all []byte
	for index := uint64(0); ; {
		batch, _, _ := r.batchAfter(index)
		if len(batch) == 0 {
			return strings.ToValidUTF8(string(all[max(0, len(all)-most):]), "\uFFFD")
		}
		for _, c := range batch {
			all = append(all, c.data...)
		}
		index = batch[len(batch)-1].index
	}
}

// createInner creates a sandbox of the backend, for sb if that is not nil. It restores the image's files
// in the work directory, over which backends mount a volume.
func (s *Server) createInner(ctx context.Context, spec *atoll.Spec, sb *sandbox, work string) (atoll.Sandbox, error) {
	spec.ID = atoll.NewID()
	s.mu.Lock()
	s.byInnerID[spec.ID] = sb
	s.mu.Unlock()
	inner, err := s.opts.Backend.Create(ctx, spec)
	if err != nil {
		s.untrackInner(spec.ID)
		return nil, err
	}
	if work == "" || hasMount(spec, atoll.DefaultWorkdir) {
		return inner, nil
	}
	if err := unpackWork(ctx, inner, work); err != nil {
		s.removeInner(inner)
		return nil, err
	}
	return inner, nil
}

// removeInner removes a sandbox of the backend, even if the caller has gone.
func (s *Server) removeInner(inner atoll.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanupTime)
	defer cancel()
	if err := inner.Remove(ctx, atoll.RemoveVolumes()); err != nil {
		s.log.Error("remove", "sandbox", inner.ID(), "err", err)
		return // Close tries again and returns the error
	}
	s.untrackInner(inner.ID())
}

func (s *Server) untrackInner(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byInnerID, id)
}
