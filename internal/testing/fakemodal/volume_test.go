//go:build linux

package fakemodal_test

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
)

// putFile uploads content and returns its hash.
func (l *testLab) putFile(content []byte) string {
	l.t.Helper()
	sum := sha256.Sum256(content)
	sha := hex.EncodeToString(sum[:])
	req := pb.MountPutFileRequest_builder{Sha256Hex: sha, Data: content}.Build()
	if len(content) > 4<<20 {
		blob := l.upload(content, content, http.StatusOK)
		req = pb.MountPutFileRequest_builder{Sha256Hex: sha, DataBlobId: &blob}.Build()
	}
	resp, err := l.raw.MountPutFile(l.ctx(), req)
	l.must("put file", err)
	if !resp.GetExists() {
		l.t.Error("a file that was put does not exist")
	}
	return sha
}

// upload announces content and sends body, which may differ.
func (l *testLab) upload(content, sent []byte, want int) (blob string) {
	l.t.Helper()
	md, sha := md5.Sum(content), sha256.Sum256(content)
	encode := base64.StdEncoding.EncodeToString
	resp, err := l.raw.BlobCreate(l.ctx(), pb.BlobCreateRequest_builder{ContentMd5: encode(md[:]), ContentSha256Base64: encode(sha[:]), ContentLength: int64(len(content))}.Build())
	l.must("blob", err)
	req, err := http.NewRequestWithContext(l.ctx(), http.MethodPut, resp.GetUploadUrl(), bytes.NewReader(sent))
	l.must("request", err)
	answer, err := http.DefaultClient.Do(req)
	l.must("upload", err)
	answer.Body.Close()
	if answer.StatusCode != want {
		l.t.Errorf("upload: %s, want %d", answer.Status, want)
	}
	return resp.GetBlobId()
}

func TestVolumes(t *testing.T) {
	l := newLab(t)
	volume, err := l.Volumes.FromName(l.ctx(), "data", &modal.VolumeFromNameParams{CreateIfMissing: true})
	l.must("volume", err)
	mode := uint32(0o751)
	big := bytes.Repeat([]byte("0123456789abcdef"), 320<<10)
	files := []*pb.MountFile{
		pb.MountFile_builder{Filename: "/bin/script", Sha256Hex: l.putFile([]byte("#!/bin/sh\necho ran\n")), Mode: &mode}.Build(),
		pb.MountFile_builder{Filename: "big", Sha256Hex: l.putFile(big)}.Build(),
	}
	put := func(files ...*pb.MountFile) error {
		_, err := l.raw.VolumePutFiles(l.ctx(), pb.VolumePutFilesRequest_builder{VolumeId: volume.VolumeID, Files: files, DisallowOverwriteExistingFiles: true}.Build())
		return err
	}
	l.must("put", put(files...))
	wantCode(t, "put again", put(files...), codes.AlreadyExists, "bin/script")
	wantCode(t, "put outside", put(pb.MountFile_builder{Filename: "../up", Sha256Hex: files[0].GetSha256Hex()}.Build()), codes.InvalidArgument, "../up")
	wantCode(t, "put nothing", put(pb.MountFile_builder{Filename: "x", Sha256Hex: strings.Repeat("0", 64)}.Build()), codes.NotFound, "not uploaded")

	first := l.create(&modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/data": volume}})
	out, _, _ := l.runScript(first, "/data/bin/script; stat -c %a /data/bin/script; sha256sum /data/big; echo from first > /data/new")
	if want := fmt.Sprintf("ran\n751\n%x  /data/big\n", sha256.Sum256(big)); out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	second := l.create(&modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/else/where": volume.ReadOnly()}})
	out, errs, code := l.runScript(second, "cat /else/where/new; echo x > /else/where/no")
	if out != "from first\n" || code == 0 || !strings.Contains(errs, "Read-only file system") {
		t.Errorf("got %q, %q, %d", out, errs, code)
	}
	l.runScript(first, "ln -s / /data/out; echo more >> /data/new")
	if out, _, _ := l.runScript(second, "cat /else/where/new"); out != "from first\nmore\n" {
		t.Errorf("the volume has %q", out)
	}
	if err := put(pb.MountFile_builder{Filename: "out/escaped", Sha256Hex: files[0].GetSha256Hex()}.Build()); err == nil {
		t.Error("a file was written through a link out of the volume")
	}
}

func TestVolumeObjects(t *testing.T) {
	l := newLab(t)
	var ids []string
	for _, name := range []string{"a", "b", "c"} {
		v, err := l.Volumes.FromName(l.ctx(), name, &modal.VolumeFromNameParams{CreateIfMissing: true})
		l.must("volume", err)
		ids = append(ids, v.VolumeID)
	}
	list := func(before float64) []*pb.VolumeListItem {
		resp, err := l.raw.VolumeList(l.ctx(), pb.VolumeListRequest_builder{Pagination: pb.ListPagination_builder{MaxObjects: 2, CreatedBefore: before}.Build()}.Build())
		l.must("list", err)
		return resp.GetItems()
	}
	page := list(0)
	if len(page) != 2 || page[0].GetVolumeId() != ids[2] || page[1].GetLabel() != "b" {
		t.Fatalf("first page: %v", page)
	}
	if page = list(page[1].GetCreatedAt()); len(page) != 1 || page[0].GetVolumeId() != ids[0] {
		t.Errorf("second page: %v", page)
	}
	_, err := l.raw.VolumeDelete(l.ctx(), pb.VolumeDeleteRequest_builder{VolumeId: ids[0]}.Build())
	l.must("delete", err)
	_, err = l.raw.VolumeDelete(l.ctx(), pb.VolumeDeleteRequest_builder{VolumeId: ids[0]}.Build())
	wantCode(t, "delete again", err, codes.NotFound, ids[0])
	if _, err := l.Volumes.FromName(l.ctx(), "a", nil); err == nil {
		t.Error("a deleted volume is found")
	}
	if _, err := l.Volumes.FromName(l.ctx(), "b", &modal.VolumeFromNameParams{Environment: "other"}); err == nil {
		t.Error("a volume is found in another environment")
	}
}

func TestUploads(t *testing.T) {
	l := newLab(t)
	content := []byte("what was announced")
	blob := l.upload(content, []byte("something else 12"), http.StatusBadRequest)
	sum := sha256.Sum256(content)
	sha := hex.EncodeToString(sum[:])
	_, err := l.raw.MountPutFile(l.ctx(), pb.MountPutFileRequest_builder{Sha256Hex: sha, DataBlobId: &blob}.Build())
	wantCode(t, "blob that has not come", err, codes.NotFound, blob)
	_, err = l.raw.MountPutFile(l.ctx(), pb.MountPutFileRequest_builder{Sha256Hex: sha, Data: []byte("another")}.Build())
	wantCode(t, "wrong hash", err, codes.InvalidArgument, "does not match the content")
	_, err = l.raw.MountPutFile(l.ctx(), pb.MountPutFileRequest_builder{Sha256Hex: sha, Data: make([]byte, 4<<20+1)}.Build())
	wantCode(t, "too much at once", err, codes.InvalidArgument, "as a blob")
	resp, err := l.raw.MountPutFile(l.ctx(), pb.MountPutFileRequest_builder{Sha256Hex: sha}.Build())
	if err != nil || resp.GetExists() {
		t.Errorf("query for a missing file: %v, %v", resp, err)
	}
}
