/* The floor of any JPEG decoder on libjpeg: Huffman decoding to coefficients, and nothing more. */
#include <stddef.h>
#include <stdio.h>

#include <jpeglib.h>

int entropy_only(const unsigned char *data, unsigned long length)
{
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, data, length);
    jpeg_read_header(&jpeg, TRUE);
    int is_read = jpeg_read_coefficients(&jpeg) != NULL;
    jpeg_destroy_decompress(&jpeg);
    return is_read;
}
