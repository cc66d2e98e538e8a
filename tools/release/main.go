package main
import (
 _ "github.com/google/go-containerregistry/pkg/v1/empty"
 _ "github.com/google/go-containerregistry/pkg/v1/layout"
 _ "github.com/google/go-containerregistry/pkg/v1/mutate"
 _ "github.com/google/go-containerregistry/pkg/v1/tarball"
 _ "github.com/CycloneDX/cyclonedx-go"
 _ "k8s.io/api/apps/v1"
 _ "sigs.k8s.io/yaml"
 _ "golang.org/x/mod/zip"
 _ "golang.org/x/mod/modfile"
 _ "golang.org/x/mod/semver"
 _ "golang.org/x/mod/sumdb/dirhash"
 _ "golang.org/x/crypto/x509roots/fallback/bundle"
)
func main(){}
