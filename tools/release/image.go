package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// mostImage bounds a platform's compressed image, in bytes.
const mostImage = 15 << 20

// buildImage builds an OCI image layout for Linux as a tar: the command, root
// certificates, and a directory for temporary files, run by an unprivileged user.
func (r *release) buildImage(ctx context.Context) error {
	at, err := r.commitTime(ctx)
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range platforms {
		if !strings.HasPrefix(platform, "linux/") {
			continue
		}
		img, err := r.image(platform, at)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: strings.TrimPrefix(platform, "linux/")}},
		})
	}
	dir := filepath.Join(r.dir, "image")
	written, err := layout.Write(dir, index)
	if err != nil {
		return err
	}
	index, err = written.ImageIndex()
	if err != nil {
		return err
	}
	if err := validate.Index(index); err != nil {
		return err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := addTree(w, dir, at); err != nil {
		return err
	}
	return os.WriteFile(r.dist("weir_"+strings.TrimPrefix(r.version, "v")+"_image.tar"), b.Bytes(), 0o644)
}

func (r *release) image(platform string, at time.Time) (v1.Image, error) {
	binary, err := os.ReadFile(r.binary(platform))
	if err != nil {
		return nil, err
	}
	var contents bytes.Buffer
	w := tar.NewWriter(&contents)
	for _, h := range []struct {
		name string
		mode int64
		text []byte
	}{
		{"tmp/", 0o1777, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, certificates()},
		{"weir", 0o755, binary},
	} {
		header := &tar.Header{Name: h.name, Mode: h.mode, Size: int64(len(h.text)), ModTime: at, Typeflag: tar.TypeReg}
		if strings.HasSuffix(h.name, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(h.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(contents.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	if size, err := layer.Size(); err != nil || size > mostImage {
		return nil, fmt.Errorf("the image for %s has %d bytes: %w", platform, size, err)
	}
	base := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: strings.TrimPrefix(platform, "linux/"), Created: v1.Time{Time: at},
		RootFS: configOf(img).RootFS,
		Config: v1.Config{
			Entrypoint: []string{"/weir"}, User: "65532:65532",
			Labels: map[string]string{
				"org.opencontainers.image.version": r.version, "org.opencontainers.image.source": "https://" + prefix,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
}

func configOf(img v1.Image) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil {
		panic(err) // not possible in memory
	}
	return c
}

// certificates returns the root certificates that Mozilla trusts, from
// golang.org/x/crypto.
func certificates() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil { // PEM cannot hold constraints
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // never fails on a Buffer
		}
	}
	return b.Bytes()
}

func addTree(w *tar.Writer, dir string, at time.Time) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(text)), ModTime: at}); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
}
