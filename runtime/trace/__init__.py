"""What the lanes did and when: kept while decoding, written for Perfetto, drawn as a picture."""
