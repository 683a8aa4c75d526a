// A package that the SDK brings along requires "path": a bundle of ES modules has it only as an import.
export { extname } from "node:path";
