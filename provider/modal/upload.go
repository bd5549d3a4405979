package modal

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
	"github.com/seed46cd37a8/atoll/provider/modal/settings"
)

// The paths of the guest in a sandbox.
const (
	guestDir  = settings.GuestDir
	guestName = "guest"
	guestPath = guestDir + "/" + guestName
)

// guestProgram returns the guest's program for Modal's machines. Kinds: ErrUnavailable.
func (p *Provider) guestProgram() ([]byte, error) {
	program, err := p.opts.Guest()
	if err == nil {
		err = guest.Fits(program, "amd64")
	}
	if err != nil {
		return nil, atoll.E("create", "", atoll.ErrUnavailable, err)
	}
	return program, nil
}

// guestVolume returns the Volume with the guest's program. Its name has the program's digest,
// so each program is uploaded once to an environment, for all servers.
func (p *Provider) guestVolume(ctx context.Context) (*sdk.Volume, error) {
	program, err := p.guestProgram()
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(program)
	return p.guests.getOrFetch(ctx, hex.EncodeToString(digest[:8]), func() (*sdk.Volume, error) {
		client, err := p.service.sdkClient()
		if err != nil {
			return nil, err
		}
		v, err := client.Volumes.FromName(ctx, p.names.guestVolumeName(hex.EncodeToString(digest[:8])), &sdk.VolumeFromNameParams{CreateIfMissing: true})
		if err != nil {
			return nil, err
		}
		if err := p.uploadGuest(ctx, v.VolumeID, program); err != nil {
			return nil, err
		}
		return v.ReadOnly(), nil
	})
}

// uploadGuest puts the guest's program into a Volume. It does not send data that Modal already
// has.
func (p *Provider) uploadGuest(ctx context.Context, volume string, program []byte) error {
	digest := sha256.Sum256(program)
	put := pb.MountPutFileRequest_builder{Sha256Hex: hex.EncodeToString(digest[:])}
	there, err := p.service.pb.MountPutFile(ctx, put.Build())
	if err != nil {
		return err
	}
	if !there.GetExists() {
		blob, err := p.uploadBlob(ctx, program)
		if err != nil {
			return err
		}
		put.DataBlobId = &blob
		if there, err = p.service.pb.MountPutFile(ctx, put.Build()); err != nil {
			return err
		}
		if !there.GetExists() {
			return atoll.Errorf("send", guestName, atoll.ErrUnavailable, "Modal did not accept it")
		}
	}
	mode := uint32(0o755)
	_, err = p.service.pb.VolumePutFiles(ctx, pb.VolumePutFilesRequest_builder{
		VolumeId: volume, Files: []*pb.MountFile{pb.MountFile_builder{Filename: guestName, Sha256Hex: put.Sha256Hex, Mode: &mode}.Build()},
	}.Build())
	return err
}

// uploadBlob sends data that is too long for a message to the URL that Modal names, and returns
// the blob's id.
func (p *Provider) uploadBlob(ctx context.Context, data []byte) (string, error) {
	sum, digest := md5.Sum(data), sha256.Sum256(data)
	made, err := p.service.pb.BlobCreate(ctx, pb.BlobCreateRequest_builder{
		ContentMd5: base64.StdEncoding.EncodeToString(sum[:]), ContentSha256Base64: base64.StdEncoding.EncodeToString(digest[:]), ContentLength: int64(len(data)),
	}.Build())
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, made.GetUploadUrl(), bytes.NewReader(data))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-MD5", base64.StdEncoding.EncodeToString(sum[:]))
	resp, err := p.opts.http.Do(req)
	if err != nil {
		return "", atoll.Errorf("send", guestName, atoll.ErrUnavailable, "Modal's storage cannot be reached: %w", errors.Unwrap(err)) // without the address, which is a secret
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // as much as there is
		return "", atoll.Errorf("send", guestName, atoll.ErrUnavailable, "Modal's storage answers %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	return made.GetBlobId(), nil
}
