//go:build linux

package fakemodal_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"

	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

func TestImages(t *testing.T) {
	l := newLab(t)
	make := func(force bool) *modal.Image {
		return l.Images.FromRegistry(l.busybox, nil).DockerfileCommands([]string{
			`ENV GREETING="hello you" \`, `    OTHER=$PATH`, "WORKDIR /srv", "RUN echo $GREETING, $OTHER, $SECRET > said && chown 5:6 said && chmod 640 said",
			"RUN mkdir /work/deep && echo kept > /work/deep/file",
		}, &modal.ImageDockerfileCommandsParams{Env: map[string]string{"SECRET": "psst"}, ForceBuild: force})
	}
	image, err := make(false).Build(l.ctx(), l.app)
	l.must("build", err)
	same, err := make(false).Build(l.ctx(), l.app)
	l.must("build again", err)
	if same.ImageID != image.ImageID {
		t.Errorf("the same recipe is %s, then %s", image.ImageID, same.ImageID)
	}
	sb, err := l.Sandboxes.Create(l.ctx(), l.app, image, &modal.SandboxCreateParams{
		Command: []string{"sh", "-c", `pwd; cat said; stat -c '%u %g %a' said; echo $GREETING$SECRET; cat /work/deep/file; stat -c %a /tmp; readlink -f /bin/sh`},
	})
	l.must("create", err)
	out, err := io.ReadAll(sb.Stdout)
	want := "/srv\nhello you, /usr/bin:/bin, psst\n" + wantOwner("5 6") + " 640\nhello you\nkept\n1777\n/bin/sh\n"
	if string(out) != want || err != nil {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	l.must("delete", l.Images.Delete(l.ctx(), image.ImageID, nil))
	if _, err := l.Images.FromID(l.ctx(), image.ImageID); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("deleted image: %v", err)
	}
	another, err := make(false).Build(l.ctx(), l.app)
	l.must("build after delete", err)
	forced, err := make(true).Build(l.ctx(), l.app)
	l.must("forced build", err)
	if another.ImageID == image.ImageID || forced.ImageID == another.ImageID {
		t.Errorf("images %s, %s, %s, want three", image.ImageID, another.ImageID, forced.ImageID)
	}
}

// wantOwner returns the expected owner of a file in an image. If this program is not root, its sandboxes
// have only one user, and all files belong to root.
func wantOwner(ids string) string {
	if os.Geteuid() != 0 {
		return "0 0"
	}
	return ids
}

func TestImageFailures(t *testing.T) {
	l := newLab(t)
	missing := strings.Replace(l.busybox, "busybox", "nothing", 1)
	for says, image := range map[string]*modal.Image{
		"image pull failed for " + missing: l.Images.FromRegistry(missing, nil),
		"went wrong":                       l.Images.FromRegistry(l.busybox, nil).DockerfileCommands([]string{"RUN echo it went wrong; exit 3"}, nil),
		"exited with code 3":               l.Images.FromRegistry(l.busybox, nil).DockerfileCommands([]string{"RUN exit 3"}, nil),
		"does not support HEALTHCHECK":     l.Images.FromRegistry(l.busybox, nil).DockerfileCommands([]string{"HEALTHCHECK NONE"}, nil),
	} {
		_, err := image.Build(l.ctx(), l.app)
		if !errors.As(err, &modal.RemoteError{}) || !strings.Contains(err.Error(), says) {
			t.Errorf("build: %v, want it to say %q", err, says)
		}
	}
	// A failed image is built again.
	other := l.images.Push("other:1", testimage.Busybox(t))
	l.images.Fault(func(http.Handler) http.Handler { return http.NotFoundHandler() })
	if _, err := l.Images.FromRegistry(other, nil).Build(l.ctx(), l.app); err == nil {
		t.Error("build without a registry succeeded")
	}
	l.images.Fault(nil)
	_, err := l.Images.FromRegistry(other, nil).Build(l.ctx(), l.app)
	l.must("build", err)
	_, err = l.Sandboxes.Create(l.ctx(), l.app, &modal.Image{ImageID: "im-none"}, nil)
	wantCode(t, "image that is not there", err, codes.NotFound, "im-none")
}

// The output of a build is streamed, and is available again after the build.
func TestImageLogs(t *testing.T) {
	l := newLab(t)
	made, err := l.raw.ImageGetOrCreate(l.ctx(), pb.ImageGetOrCreateRequest_builder{
		AppId: l.app.AppID, Image: pb.Image_builder{DockerfileCommands: []string{"FROM " + l.busybox, "WORKDIR /srv", "RUN echo said"}}.Build(),
	}.Build())
	l.must("image", err)
	if made.GetResult() != nil {
		t.Errorf("the result at the start is %v, want none", made.GetResult())
	}
	for range 2 {
		stream, err := l.raw.ImageJoinStreaming(l.ctx(), pb.ImageJoinStreamingRequest_builder{ImageId: made.GetImageId(), Timeout: 55, IncludeLogsForFinished: true}.Build())
		l.must("join", err)
		var logs string
		var last *pb.ImageJoinStreamingResponse
		for {
			item, err := stream.Recv()
			if err == io.EOF {
				break
			}
			l.must("join", err)
			for _, log := range item.GetTaskLogs() {
				logs += log.GetData()
			}
			last = item
		}
		if !strings.HasSuffix(logs, "RUN echo said\nsaid\n") || last.GetResult().GetStatus() != pb.GenericResult_GENERIC_STATUS_SUCCESS || last.GetMetadata().GetWorkdir() != "/srv" {
			t.Errorf("logs %q, last %v", logs, last)
		}
	}
}

// A snapshot has all files except those of mounts.
func TestSnapshot(t *testing.T) {
	l := newLab(t)
	volume, err := l.Volumes.Ephemeral(l.ctx(), nil)
	l.must("volume", err)
	defer volume.CloseEphemeral()
	sb := l.create(&modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/mnt/data": volume}})
	l.runScript(sb, `echo hidden > /mnt/data/file; mkdir -p /srv/a; echo text > /srv/a/file; chown 1000:7 /srv/a/file; ln /srv/a/file /srv/hard; ln -s a /srv/link; rm /etc/group; echo w > /work/w`)
	image, err := sb.SnapshotFilesystem(l.ctx(), testTimeout)
	l.must("snapshot", err)
	l.must("terminate", sb.Terminate(l.ctx()))
	next, err := l.Sandboxes.Create(l.ctx(), l.app, image, &modal.SandboxCreateParams{
		Command: []string{"sh", "-c", `cat /srv/link/file; stat -c '%u %g %h' /srv/hard; ls /etc/group /mnt/data; cat /work/w`},
	})
	l.must("create", err)
	out, err := io.ReadAll(next.Stdout)
	if want := "text\n" + wantOwner("1000 7") + " 2\n/mnt/data:\nw\n"; string(out) != want || err != nil {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	l.awaitResult(sb.SandboxID)
	if _, err := sb.SnapshotFilesystem(l.ctx(), testTimeout); err == nil {
		t.Error("snapshot of a finished sandbox succeeded")
	}
}
