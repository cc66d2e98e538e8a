package main

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes the components that the go command has recorded in a binary (CycloneDX
// 1.6).
func (r *release) writeSBOM(name string, info *buildinfo.BuildInfo) error {
	component := func(path, version string, kind cdx.ComponentType) cdx.Component {
		purl := "pkg:golang/" + path + "@" + version
		return cdx.Component{BOMRef: purl, Type: kind, Name: path, Version: version, PackageURL: purl}
	}
	bom := cdx.NewBOM()
	command := component(info.Main.Path, info.Main.Version, cdx.ComponentTypeApplication)
	bom.Metadata = &cdx.Metadata{Component: &command}
	components := []cdx.Component{component("std", strings.TrimPrefix(info.GoVersion, "go"), cdx.ComponentTypeLibrary)}
	for _, dep := range info.Deps {
		components = append(components, component(dep.Path, dep.Version, cdx.ComponentTypeLibrary))
	}
	var refs []string
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: command.BOMRef, Dependencies: &refs}}
	var b bytes.Buffer
	e := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON)
	e.SetPretty(true)
	if err := e.EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}
